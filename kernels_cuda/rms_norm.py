"""RMS normalisation: one program a row, the row in registers, one rounding after the weight.

Suffixes: T tokens (rows), H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import NormSpec

DTYPES = ("bfloat16", "float16", "float32")
MAX_HIDDEN = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNormDesc:
    """What a configuration depends on."""

    hidden_size: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNormConfig:
    """`block_h`: elements of a row that one program holds."""

    block_h: int
    num_warps: int


def pick_config(desc: RmsNormDesc) -> RmsNormConfig:
    """The whole row at once; 8 to 16 elements a thread, so that it stays in registers."""
    block_h = max(64, triton.next_power_of_2(desc.hidden_size))
    return RmsNormConfig(block_h=block_h, num_warps=min(16, max(1, block_h // 512)))


def descriptions() -> Iterator[RmsNormDesc]:
    """One description for every configuration that `pick_config` can return."""
    for dtype in DTYPES:
        for power in range(6, MAX_HIDDEN.bit_length()):
            yield RmsNormDesc(hidden_size=1 << power, dtype=dtype)


@triton.jit
def rms_norm_kernel(x_ptr, weight_ptr, out_ptr, x_stride, hidden_size, eps, BLOCK_H: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offset_H = tl.arange(0, BLOCK_H)
    inside_H = offset_H < hidden_size
    x_H = tl.load(x_ptr + row * x_stride + offset_H, mask=inside_H, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(x_H * x_H, axis=0) / hidden_size + eps)
    weight_H = tl.load(weight_ptr + offset_H, mask=inside_H, other=0.0).to(tl.float32)
    y_H = x_H * rstd * weight_H
    tl.store(out_ptr + row * hidden_size + offset_H, y_H.to(out_ptr.dtype.element_ty), mask=inside_H)


def case(desc: RmsNormDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config, pointer = pick_config(desc), f"{POINTERS[desc.dtype]}:16"
    return KernelCase(
        kernel=rms_norm_kernel,
        signature=(
            ("x_ptr", pointer),
            ("weight_ptr", pointer),
            ("out_ptr", pointer),
            ("x_stride", "i32:16"),
            ("hidden_size", "i32:16"),
            ("eps", "fp32"),
        ),
        constants={"BLOCK_H": config.block_h},
        options={"num_warps": config.num_warps},
    )


def refuse(spec: NormSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    return "" if spec.hidden_size <= MAX_HIDDEN else f"a row of {spec.hidden_size} does not fit one program"


def make_rms_norm(spec: NormSpec, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """rms_norm(x_TH, weight_H) -> out_TH. x may be strided in T."""
    launch = launcher.prepare(case(RmsNormDesc(hidden_size=spec.hidden_size, dtype=spec.dtype)))
    hidden_size, eps = spec.hidden_size, spec.eps

    def rms_norm(x_TH: torch.Tensor, weight_H: torch.Tensor) -> torch.Tensor:
        out_TH = x_TH.new_empty((x_TH.shape[0], hidden_size))
        launch((x_TH.shape[0],), x_TH, weight_H, out_TH, x_TH.stride(0), hidden_size, eps)
        return out_TH

    return rms_norm

"""RMS normalisation: whole rows in registers, one rounding after the weight.

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
    """One program holds `block_t` rows of up to `block_h` elements."""

    block_t: int
    block_h: int
    num_warps: int


def pick_config(desc: RmsNormDesc) -> RmsNormConfig:
    """Some 16 elements a thread. Short rows, as those of head norms, come several to a program."""
    block_h = max(64, triton.next_power_of_2(desc.hidden_size))
    block_t = max(1, 1024 // block_h)
    return RmsNormConfig(block_t=block_t, block_h=block_h, num_warps=min(16, max(1, block_t * block_h // 512)))


def descriptions() -> Iterator[RmsNormDesc]:
    """One description for every configuration that `pick_config` can return."""
    for dtype in DTYPES:
        for power in range(6, MAX_HIDDEN.bit_length()):
            yield RmsNormDesc(hidden_size=1 << power, dtype=dtype)


@triton.jit(do_not_specialize=["num_rows"])
def rms_norm_kernel(
    x_ptr, weight_ptr, out_ptr, num_rows, x_stride, hidden_size, eps, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr
):
    row_T1 = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)[:, None]
    offset_1H = tl.arange(0, BLOCK_H)[None, :]
    inside_TH = (row_T1 < num_rows) & (offset_1H < hidden_size)
    x_TH = tl.load(x_ptr + row_T1 * x_stride + offset_1H, mask=inside_TH, other=0.0).to(tl.float32)
    rstd_T1 = 1.0 / tl.sqrt_rn(tl.sum(x_TH * x_TH, axis=1, keep_dims=True) / hidden_size + eps)
    weight_1H = tl.load(weight_ptr + offset_1H, mask=offset_1H < hidden_size, other=0.0).to(tl.float32)
    y_TH = x_TH * rstd_T1 * weight_1H
    tl.store(out_ptr + row_T1 * hidden_size + offset_1H, y_TH.to(out_ptr.dtype.element_ty), mask=inside_TH)


def case(desc: RmsNormDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config, pointer = pick_config(desc), f"{POINTERS[desc.dtype]}:16"
    return KernelCase(
        kernel=rms_norm_kernel,
        signature=(
            ("x_ptr", pointer),
            ("weight_ptr", pointer),
            ("out_ptr", pointer),
            ("num_rows", "i32"),
            ("x_stride", "i32:16"),
            ("hidden_size", "i32:16"),
            ("eps", "fp32"),
        ),
        constants={"BLOCK_T": config.block_t, "BLOCK_H": config.block_h},
        options={"num_warps": config.num_warps},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    yield from ((case(desc), frozenset()) for desc in descriptions())


def refuse(spec: NormSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    if spec.hidden_size % 16:
        return f"a row of {spec.hidden_size} is not a multiple of 16"
    return "" if spec.hidden_size <= MAX_HIDDEN else f"a row of {spec.hidden_size} does not fit one program"


def make_rms_norm(spec: NormSpec, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """rms_norm(x_TH, weight_H) -> out_TH. x may be strided in T."""
    desc = RmsNormDesc(hidden_size=spec.hidden_size, dtype=spec.dtype)
    launch, block_t = launcher.prepare(case(desc)), pick_config(desc).block_t
    hidden_size, eps = spec.hidden_size, spec.eps

    def rms_norm(x_TH: torch.Tensor, weight_H: torch.Tensor) -> torch.Tensor:
        rows = x_TH.shape[0]
        out_TH = x_TH.new_empty((rows, hidden_size))
        if rows:
            launch((-(-rows // block_t),), x_TH, weight_H, out_TH, rows, x_TH.stride(0), hidden_size, eps)
        return out_TH

    return rms_norm

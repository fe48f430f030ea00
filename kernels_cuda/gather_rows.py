"""Rows of a matrix by index, one block of one row a program. Exact. Also what the embedding is.

Suffixes: T rows of x, R rows of the result, H width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import GatherSpec

DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherDesc:
    """What a configuration depends on."""

    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherConfig:
    """`block_h`: elements of a row that one program copies."""

    block_h: int
    num_warps: int


def pick_config(desc: GatherDesc) -> GatherConfig:
    """8 elements a thread, 16 bytes in a 16-bit type."""
    return GatherConfig(block_h=1024, num_warps=4)


def descriptions() -> Iterator[GatherDesc]:
    """One description for every configuration that `pick_config` can return."""
    yield from (GatherDesc(dtype=dtype) for dtype in DTYPES)


@triton.jit
def gather_rows_kernel(x_ptr, rows_ptr, out_ptr, x_stride, width, BLOCK_H: tl.constexpr):
    out_row = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + out_row).to(tl.int64)
    offset_H = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    inside_H = offset_H < width
    x_H = tl.load(x_ptr + row * x_stride + offset_H, mask=inside_H)
    tl.store(out_ptr + out_row * width + offset_H, x_H, mask=inside_H)


def case(desc: GatherDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config, pointer = pick_config(desc), f"{POINTERS[desc.dtype]}:16"
    return KernelCase(
        kernel=gather_rows_kernel,
        signature=(
            ("x_ptr", pointer),
            ("rows_ptr", "*i32"),
            ("out_ptr", pointer),
            ("x_stride", "i32:16"),
            ("width", "i32:16"),
        ),
        constants={"BLOCK_H": config.block_h},
        options={"num_warps": config.num_warps},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    yield from ((case(desc), frozenset()) for desc in descriptions())


def refuse_width(width: int) -> str:
    """Why rows of `width` elements are not served, or ""."""
    return f"a row of {width} is not a multiple of 16" if width % 16 else ""


def refuse(spec: GatherSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    return refuse_width(spec.width)


def make_gather(width: int, dtype: str, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """gather(x_TH, rows_R int32) -> out_RH. x may be strided in T."""
    desc = GatherDesc(dtype=dtype)
    launch, blocks = launcher.prepare(case(desc)), -(-width // pick_config(desc).block_h)

    def gather(x_TH: torch.Tensor, rows_R: torch.Tensor) -> torch.Tensor:
        rows = rows_R.shape[0]
        out_RH = x_TH.new_empty((rows, width))
        if rows:
            launch((rows, blocks), x_TH, rows_R, out_RH, x_TH.stride(0), width)
        return out_RH

    return gather


def make_gather_rows(spec: GatherSpec, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """gather_rows(x_TH, rows_R) -> out_RH."""
    return make_gather(spec.width, spec.dtype, launcher)

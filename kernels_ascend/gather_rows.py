"""Rows of a matrix by index. Cores take pieces of rows in turn, each a block copy. Exact. Also what the embedding is.

Suffixes: T rows of x, R rows of the result, H width (or a piece of it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import GatherSpec

DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherDesc:
    """What a configuration depends on."""

    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherConfig:
    """`block_h`: elements of a row that are copied at a time."""

    block_h: int


def pick_config(desc: GatherDesc) -> GatherConfig:
    """Up to 16 KB: most rows are one copy, and the buffer of every chip holds several."""
    return GatherConfig(block_h=4096)


def descriptions() -> Iterator[GatherDesc]:
    """One description for every configuration that `pick_config` can return."""
    yield from (GatherDesc(dtype=dtype) for dtype in DTYPES)


@triton.jit(do_not_specialize=["rows", "x_stride", "width", "pieces"])
def gather_rows_kernel(x_ptr, rows_ptr, out_ptr, rows, x_stride, width, pieces, BLOCK_H: tl.constexpr):
    for item in range(tl.program_id(0), rows * pieces, tl.num_programs(0)):
        out_row = item // pieces
        row = tl.load(rows_ptr + out_row).to(tl.int64)
        h = item % pieces * BLOCK_H + tl.arange(0, BLOCK_H)
        x_H = tl.load(x_ptr + row * x_stride + h, mask=h < width)
        tl.store(out_ptr + out_row.to(tl.int64) * width + h, x_H, mask=h < width)


def case(desc: GatherDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    pointer = POINTERS[desc.dtype]
    return KernelCase(
        kernel=gather_rows_kernel,
        signature=(
            ("x_ptr", pointer),
            ("rows_ptr", "*i32"),
            ("out_ptr", pointer),
            *((name, "i32") for name in ("rows", "x_stride", "width", "pieces")),
        ),
        constants={"BLOCK_H": pick_config(desc).block_h},
        options={},
    )


def refuse_dtype(dtype: str) -> str:
    """Why rows of `dtype` are not served, or ""."""
    return "" if dtype in DTYPES else f"dtype {dtype} is not one of {', '.join(DTYPES)}"


def refuse(spec: GatherSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    return refuse_dtype(spec.dtype)


def make_gather(width: int, dtype: str, soc: Soc, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """gather(x_TH, rows_R int32) -> out_RH. x may be strided in T."""
    desc = GatherDesc(dtype=dtype)
    launch, grid = launcher.prepare(case(desc)), (soc.vector_cores,)
    pieces = -(-width // pick_config(desc).block_h)

    def gather(x_TH: torch.Tensor, rows_R: torch.Tensor) -> torch.Tensor:
        rows = rows_R.shape[0]
        out_RH = x_TH.new_empty((rows, width))
        if rows:
            launch(grid, x_TH, rows_R, out_RH, rows, x_TH.stride(0), width, pieces)
        return out_RH

    return gather


def make_gather_rows(spec: GatherSpec, soc: Soc, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """gather_rows(x_TH, rows_R) -> out_RH."""
    return make_gather(spec.width, spec.dtype, soc, launcher)

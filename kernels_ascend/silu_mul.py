"""silu(gate) * up over a fused projection. Cores take pieces of rows in turn. Rounded once.

Suffixes: T tokens (rows), I intermediate size (or a piece of it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import ActivationSpec
from isoinfer.kernels_ascend.memory import tile_size

DTYPES = ("bfloat16", "float16", "float32")
LIVE_BYTES = 28
"""Of an element: gate, up, the exponential and the product in float32, and three of the input's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationDesc:
    """What a configuration depends on. `tile`: elements that fit the chip's buffer."""

    tile: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationConfig:
    """`block_i`: outputs of one piece."""

    block_i: int


def tile_of(soc: Soc) -> int:
    """Elements of a tile on this chip."""
    return tile_size(
        ub_bytes=soc.ub_bytes, double_buffer=soc.double_buffer, live_bytes=LIVE_BYTES, itemsize=2, limit=4096
    )


def pick_config(desc: ActivationDesc) -> ActivationConfig:
    """Whole tiles: the pieces of a row are independent."""
    return ActivationConfig(block_i=desc.tile)


def descriptions(soc: Soc) -> Iterator[ActivationDesc]:
    """One description for every configuration on this chip."""
    yield from (ActivationDesc(tile=tile_of(soc), dtype=dtype) for dtype in DTYPES)


@triton.jit(do_not_specialize=["rows", "x_stride", "size", "pieces"])
def silu_mul_kernel(x_ptr, out_ptr, rows, x_stride, size, pieces, BLOCK_I: tl.constexpr):
    for item in range(tl.program_id(0), rows * pieces, tl.num_programs(0)):
        row, start = (item // pieces).to(tl.int64), item % pieces * BLOCK_I
        i = start + tl.arange(0, BLOCK_I)
        inside_I = i < size
        gate_I = tl.load(x_ptr + row * x_stride + i, mask=inside_I, other=0.0).to(tl.float32)
        up_I = tl.load(x_ptr + row * x_stride + size + i, mask=inside_I, other=0.0).to(tl.float32)
        y_I = gate_I / (1.0 + tl.exp(-gate_I)) * up_I
        tl.store(out_ptr + row * size + i, y_I.to(out_ptr.dtype.element_ty), mask=inside_I)


def case(desc: ActivationDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    pointer = POINTERS[desc.dtype]
    return KernelCase(
        kernel=silu_mul_kernel,
        signature=(
            ("x_ptr", pointer),
            ("out_ptr", pointer),
            *((name, "i32") for name in ("rows", "x_stride", "size", "pieces")),
        ),
        constants={"BLOCK_I": pick_config(desc).block_i},
        options={},
    )


def refuse(spec: ActivationSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    return "" if spec.dtype in DTYPES else f"dtype {spec.dtype} is not one of {', '.join(DTYPES)}"


def make_silu_mul(spec: ActivationSpec, soc: Soc, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """silu_mul(x_T2I) -> out_TI. x may be strided in T."""
    desc = ActivationDesc(tile=tile_of(soc), dtype=spec.dtype)
    launch, grid, size = launcher.prepare(case(desc)), (soc.vector_cores,), spec.intermediate_size
    pieces = -(-size // pick_config(desc).block_i)

    def silu_mul(x_T2I: torch.Tensor) -> torch.Tensor:
        rows = x_T2I.shape[0]
        out_TI = x_T2I.new_empty((rows, size))
        if rows:
            launch(grid, x_T2I, out_TI, rows, x_T2I.stride(0), size, pieces)
        return out_TI

    return silu_mul

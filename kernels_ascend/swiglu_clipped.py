"""gpt-oss's clipped activation, (clamp(up) + 1) * gate * sigmoid(alpha * gate). Cores take pieces of rows in turn.

Suffixes: T tokens (rows), I intermediate size (or a piece of it).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import SwigluClippedSpec
from isoinfer.kernels_ascend.silu_mul import DTYPES, ActivationDesc, descriptions, pick_config, tile_of

__all__ = ["case", "descriptions", "make_swiglu_clipped", "pick_config", "refuse"]


@triton.jit(do_not_specialize=["rows", "x_stride", "size", "pieces"])
def swiglu_clipped_kernel(x_ptr, out_ptr, rows, x_stride, size, pieces, alpha, limit, BLOCK_I: tl.constexpr):
    for item in range(tl.program_id(0), rows * pieces, tl.num_programs(0)):
        row, start = (item // pieces).to(tl.int64), item % pieces * BLOCK_I
        i = start + tl.arange(0, BLOCK_I)
        inside_I = i < size
        gate_I = tl.load(x_ptr + row * x_stride + i, mask=inside_I, other=0.0).to(tl.float32)
        up_I = tl.load(x_ptr + row * x_stride + size + i, mask=inside_I, other=0.0).to(tl.float32)
        gate_I = tl.minimum(gate_I, limit)
        up_I = tl.minimum(tl.maximum(up_I, -limit), limit)
        y_I = (up_I + 1.0) * gate_I / (1.0 + tl.exp(-alpha * gate_I))
        tl.store(out_ptr + row * size + i, y_I.to(out_ptr.dtype.element_ty), mask=inside_I)


def case(desc: ActivationDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    pointer = POINTERS[desc.dtype]
    return KernelCase(
        kernel=swiglu_clipped_kernel,
        signature=(
            ("x_ptr", pointer),
            ("out_ptr", pointer),
            *((name, "i32") for name in ("rows", "x_stride", "size", "pieces")),
            ("alpha", "fp32"),
            ("limit", "fp32"),
        ),
        constants={"BLOCK_I": pick_config(desc).block_i},
        options={},
    )


def refuse(spec: SwigluClippedSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    return "" if spec.dtype in DTYPES else f"dtype {spec.dtype} is not one of {', '.join(DTYPES)}"


def make_swiglu_clipped(spec: SwigluClippedSpec, soc: Soc, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """swiglu_clipped(x_T2I) -> out_TI. x may be strided in T."""
    desc = ActivationDesc(tile=tile_of(soc), dtype=spec.dtype)
    launch, grid, size = launcher.prepare(case(desc)), (soc.vector_cores,), spec.intermediate_size
    pieces, alpha, limit = -(-size // pick_config(desc).block_i), spec.alpha, spec.limit

    def swiglu_clipped(x_T2I: torch.Tensor) -> torch.Tensor:
        rows = x_T2I.shape[0]
        out_TI = x_T2I.new_empty((rows, size))
        if rows:
            launch(grid, x_T2I, out_TI, rows, x_T2I.stride(0), size, pieces, alpha, limit)
        return out_TI

    return swiglu_clipped

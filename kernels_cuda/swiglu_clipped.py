"""gpt-oss's clipped activation, (clamp(up) + 1) * gate * sigmoid(alpha * gate), one block of one row a program.

Suffixes: T tokens (rows), I intermediate size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl

from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import SwigluClippedSpec
from isoinfer.kernels_cuda.silu_mul import ActivationDesc, descriptions, pick_config

__all__ = ["case", "cases", "descriptions", "make_swiglu_clipped", "pick_config", "refuse"]


@triton.jit
def swiglu_clipped_kernel(x_ptr, out_ptr, x_stride, size, alpha, limit, BLOCK_I: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offset_I = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    inside_I = offset_I < size
    gate_ptr = x_ptr + row * x_stride
    gate_I = tl.load(gate_ptr + offset_I, mask=inside_I, other=0.0).to(tl.float32)
    up_I = tl.load(gate_ptr + size + offset_I, mask=inside_I, other=0.0).to(tl.float32)
    gate_I = tl.minimum(gate_I, limit)
    up_I = tl.minimum(tl.maximum(up_I, -limit), limit)
    y_I = (up_I + 1.0) * gate_I / (1.0 + tl.exp(-alpha * gate_I))
    tl.store(out_ptr + row * size + offset_I, y_I.to(out_ptr.dtype.element_ty), mask=inside_I)


def case(desc: ActivationDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config, pointer = pick_config(desc), f"{POINTERS[desc.dtype]}:16"
    return KernelCase(
        kernel=swiglu_clipped_kernel,
        signature=(
            ("x_ptr", pointer),
            ("out_ptr", pointer),
            ("x_stride", "i32:16"),
            ("size", "i32:16"),
            ("alpha", "fp32"),
            ("limit", "fp32"),
        ),
        constants={"BLOCK_I": config.block_i},
        options={"num_warps": config.num_warps},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    yield from ((case(desc), frozenset()) for desc in descriptions())


def refuse(spec: SwigluClippedSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    return f"a width of {spec.intermediate_size} is not a multiple of 16" if spec.intermediate_size % 16 else ""


def make_swiglu_clipped(spec: SwigluClippedSpec, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """swiglu_clipped(x_T2I) -> out_TI. x may be strided in T."""
    desc = ActivationDesc(dtype=spec.dtype)
    launch, size = launcher.prepare(case(desc)), spec.intermediate_size
    blocks, alpha, limit = -(-size // pick_config(desc).block_i), spec.alpha, spec.limit

    def swiglu_clipped(x_T2I: torch.Tensor) -> torch.Tensor:
        rows = x_T2I.shape[0]
        out_TI = x_T2I.new_empty((rows, size))
        if rows:
            launch((rows, blocks), x_T2I, out_TI, x_T2I.stride(0), size, alpha, limit)
        return out_TI

    return swiglu_clipped

"""silu(gate) * up over a fused projection, one block of one row a program. Rounded once.

Suffixes: T tokens (rows), I intermediate size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import ActivationSpec

DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationDesc:
    """What a configuration depends on."""

    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationConfig:
    """`block_i`: outputs of one program."""

    block_i: int
    num_warps: int


def pick_config(desc: ActivationDesc) -> ActivationConfig:
    """8 outputs a thread: one load of 16 bytes each from gate and up in a 16-bit type."""
    return ActivationConfig(block_i=1024, num_warps=4)


def descriptions() -> Iterator[ActivationDesc]:
    """One description for every configuration that `pick_config` can return."""
    yield from (ActivationDesc(dtype=dtype) for dtype in DTYPES)


@triton.jit
def silu_mul_kernel(x_ptr, out_ptr, x_stride, size, BLOCK_I: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offset_I = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    inside_I = offset_I < size
    gate_ptr = x_ptr + row * x_stride
    gate_I = tl.load(gate_ptr + offset_I, mask=inside_I, other=0.0).to(tl.float32)
    up_I = tl.load(gate_ptr + size + offset_I, mask=inside_I, other=0.0).to(tl.float32)
    y_I = gate_I / (1.0 + tl.exp(-gate_I)) * up_I
    tl.store(out_ptr + row * size + offset_I, y_I.to(out_ptr.dtype.element_ty), mask=inside_I)


def case(desc: ActivationDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config, pointer = pick_config(desc), f"{POINTERS[desc.dtype]}:16"
    return KernelCase(
        kernel=silu_mul_kernel,
        signature=(("x_ptr", pointer), ("out_ptr", pointer), ("x_stride", "i32:16"), ("size", "i32:16")),
        constants={"BLOCK_I": config.block_i},
        options={"num_warps": config.num_warps},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    yield from ((case(desc), frozenset()) for desc in descriptions())


def refuse(spec: ActivationSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    return f"a width of {spec.intermediate_size} is not a multiple of 16" if spec.intermediate_size % 16 else ""


def make_silu_mul(spec: ActivationSpec, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """silu_mul(x_T2I) -> out_TI. x may be strided in T."""
    desc = ActivationDesc(dtype=spec.dtype)
    launch, size = launcher.prepare(case(desc)), spec.intermediate_size
    blocks = -(-size // pick_config(desc).block_i)

    def silu_mul(x_T2I: torch.Tensor) -> torch.Tensor:
        rows = x_T2I.shape[0]
        out_TI = x_T2I.new_empty((rows, size))
        if rows:
            launch((rows, blocks), x_T2I, out_TI, x_T2I.stride(0), size)
        return out_TI

    return silu_mul

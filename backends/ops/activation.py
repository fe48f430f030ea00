"""Gated activations over a fused gate-and-up projection: the gate is the first half, up the second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from isoinfer.backends.ops.composed import torch_composition
from isoinfer.backends.ops.dtypes import compute_dtype, dtype_name
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationSpec:
    """Width of one half."""

    intermediate_size: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwigluClippedSpec:
    """`limit` clamps gate from above and up on both sides; `alpha` is the slope inside the sigmoid."""

    intermediate_size: int
    alpha: float
    limit: float
    dtype: str


def silu_mul(x_T2I: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up in the dtype of x, without rounding rules: the building block of the references."""
    gate, up = x_T2I.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def swiglu_clipped(x_T2I: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """(clamped up + 1) * clamped gate * sigmoid(alpha * clamped gate) in the dtype of x."""
    gate, up = x_T2I.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(alpha * gate)


def silu_mul_reference(static: ActivationSpec, x_T2I: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, rounded once."""
    return silu_mul(x_T2I.to(compute_dtype(x_T2I))).to(x_T2I.dtype)


def swiglu_clipped_reference(static: SwigluClippedSpec, x_T2I: torch.Tensor) -> torch.Tensor:
    """gpt-oss's clipped activation, rounded once."""
    x = x_T2I.to(compute_dtype(x_T2I))
    return swiglu_clipped(x, static.alpha, static.limit).to(x_T2I.dtype)


def _exp_blur(x: torch.Tensor) -> torch.Tensor:
    """An exponential multiplies the relative rounding error of its argument by the argument."""
    return 1 + x.abs()


def _silu_condition(static: ActivationSpec, x_T2I: torch.Tensor) -> torch.Tensor:
    gate, _ = x_T2I.chunk(2, dim=-1)
    return silu_mul(x_T2I).abs() * _exp_blur(gate)


def _swiglu_condition(static: SwigluClippedSpec, x_T2I: torch.Tensor) -> torch.Tensor:
    gate, up = x_T2I.chunk(2, dim=-1)
    gate = gate.clamp(max=static.limit)
    size = gate.abs() * torch.sigmoid(static.alpha * gate) * _exp_blur(static.alpha * gate)
    # up + 1 cancels near -1; the sum of sizes is what its rounding error scales with
    return (up.abs().clamp(max=static.limit) + 1) * size


def _inputs(dtype: torch.dtype, seed: int) -> Iterator[tuple[str, int, torch.Tensor]]:
    gen = torch.Generator().manual_seed(seed)
    for label, T, size, spread in (("one-token", 1, 64, 1.0), ("odd", 5, 37, 1.0), ("wide-range", 16, 512, 8.0)):
        yield label, size, (spread * torch.randn(T, 2 * size, generator=gen)).to(dtype)


def _silu_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    for label, size, x in _inputs(dtype, seed):
        static = ActivationSpec(intermediate_size=size, dtype=dtype_name(dtype))
        yield Sample(label=label, static=static, args=(x,))


def _swiglu_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    for label, size, x in _inputs(dtype, seed):
        static = SwigluClippedSpec(intermediate_size=size, alpha=1.702, limit=7.0, dtype=dtype_name(dtype))
        yield Sample(label=label, static=static, args=(x,))


SILU_MUL = OpSpec(
    name="silu_mul",
    family="activation",
    signature="silu_mul(x_T2I) -> out_TI",
    static_type=ActivationSpec,
    reference=silu_mul_reference,
    samples=_silu_samples,
    error=ErrorModel(kind="float", condition=_silu_condition),
    required=True,
)

SWIGLU_CLIPPED = OpSpec(
    name="swiglu_clipped",
    family="activation",
    signature="swiglu_clipped(x_T2I) -> out_TI",
    static_type=SwigluClippedSpec,
    reference=swiglu_clipped_reference,
    samples=_swiglu_samples,
    error=ErrorModel(kind="float", condition=_swiglu_condition),
    decomposition=torch_composition(swiglu_clipped_reference),
)

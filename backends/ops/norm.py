"""RMS normalisation, plain and fused with the residual addition. One rounding, after the weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from isoinfer.backends.ops.dtypes import compute_dtype, dtype_name
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSpec:
    """Static part of the norms. Also serves q and k norms: `hidden_size` is then the head dim."""

    hidden_size: int
    eps: float
    dtype: str


def rms_norm_reference(static: NormSpec, x_TH: torch.Tensor, weight_H: torch.Tensor) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight."""
    x = x_TH.to(compute_dtype(x_TH))
    rstd_T1 = torch.rsqrt(x.square().mean(-1, keepdim=True) + static.eps)
    return (x * rstd_T1 * weight_H.to(x.dtype)).to(x_TH.dtype)


def add_rms_norm_reference(
    static: NormSpec, x_TH: torch.Tensor, residual_TH: torch.Tensor, weight_H: torch.Tensor
) -> torch.Tensor:
    """residual += x (rounded to its dtype), then the norm of the updated residual."""
    residual_TH.add_(x_TH)
    return rms_norm_reference(static, residual_TH, weight_H)


def _decompose_add_rms_norm(bind: Callable[..., Callable[..., Any]], static: NormSpec) -> Callable[..., Any]:
    norm = bind(RMS_NORM, static)

    def add_rms_norm(x_TH: torch.Tensor, residual_TH: torch.Tensor, weight_H: torch.Tensor) -> Any:
        residual_TH.add_(x_TH)
        return norm(residual_TH, weight_H)

    return add_rms_norm


def _inputs(dtype: torch.dtype, seed: int) -> Iterator[tuple[str, NormSpec, torch.Tensor, torch.Tensor, torch.Tensor]]:
    gen = torch.Generator().manual_seed(seed)
    shapes = (("one-token", 1, 64, 1.0), ("odd", 7, 101, 1.0), ("large-values", 33, 576, 300.0), ("tiny", 4, 16, 1e-4))
    for label, T, H, size in shapes:
        x = (torch.randn(T, H, generator=gen) * size).to(dtype)
        residual = (torch.randn(T, H, generator=gen) * size).to(dtype)
        weight = (1 + 0.3 * torch.randn(H, generator=gen)).to(dtype)
        yield label, NormSpec(hidden_size=H, eps=1e-6, dtype=dtype_name(dtype)), x, residual, weight


def _norm_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    for label, static, x, _, weight in _inputs(dtype, seed):
        yield Sample(label=label, static=static, args=(x, weight))
    zero = NormSpec(hidden_size=8, eps=1e-5, dtype=dtype_name(dtype))
    yield Sample(label="zero-row", static=zero, args=(torch.zeros(2, 8, dtype=dtype), torch.ones(8, dtype=dtype)))


def _add_norm_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    for label, static, x, residual, weight in _inputs(dtype, seed):
        yield Sample(label=label, static=static, args=(x, residual, weight))


def _add_norm_condition(
    static: NormSpec, x_TH: torch.Tensor, residual_TH: torch.Tensor, weight_H: torch.Tensor
) -> dict[str, torch.Tensor]:
    size_TH = x_TH.abs() + residual_TH.abs()
    rstd_T1 = torch.rsqrt((x_TH + residual_TH).square().mean(-1, keepdim=True) + static.eps)
    return {"residual_TH": size_TH, "normed_TH": size_TH * rstd_T1 * weight_H.abs()}


def _hidden_size(static: NormSpec) -> int:
    return static.hidden_size


RMS_NORM = OpSpec(
    name="rms_norm",
    family="norm",
    signature="rms_norm(x_TH, weight_H) -> out_TH",
    static_type=NormSpec,
    reference=rms_norm_reference,
    samples=_norm_samples,
    error=ErrorModel(kind="float", reduction=_hidden_size),
    required=True,
)

ADD_RMS_NORM = OpSpec(
    name="add_rms_norm",
    family="norm",
    signature="add_rms_norm(x_TH, residual_TH, weight_H) -> normed_TH",
    static_type=NormSpec,
    reference=add_rms_norm_reference,
    samples=_add_norm_samples,
    # The second rounding, of the residual, is part of the contract and doubles the mean square.
    error=ErrorModel(kind="float", reduction=_hidden_size, condition=_add_norm_condition),
    writes=("residual_TH",),
    decomposition=_decompose_add_rms_norm,
)

"""Mixture of experts: choosing experts per token, and running them. Expert weights are `[E, N, K]`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from isoinfer.backends.ops.activation import silu_mul, swiglu_clipped
from isoinfer.backends.ops.composed import torch_composition
from isoinfer.backends.ops.dtypes import compute_dtype, dtype_name, unit_roundoff
from isoinfer.backends.ops.linear import DenseWeight
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample

RouteKind = Literal["softmax_topk", "topk_softmax"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSpec:
    """softmax_topk: softmax over all experts, then the best k. topk_softmax: softmax over the best k logits.

    `renormalize` divides the k weights by their sum. `dtype` is that of the logits.
    """

    num_experts: int
    top_k: int
    kind: RouteKind
    renormalize: bool
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """`alpha` and `limit` belong to swiglu_clipped and are 0 for silu_mul. `bias`: both products have one."""

    num_experts: int
    top_k: int
    hidden_size: int
    intermediate_size: int
    activation: Literal["silu_mul", "swiglu_clipped"]
    alpha: float
    limit: float
    bias: bool
    dtype: str


def moe_route_reference(static: RouteSpec, logits_TE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights `[T, X]` float32 and expert ids `[T, X]` int32, best first; equal logits: lower index first."""
    logits = logits_TE.to(compute_dtype(logits_TE))
    best, order = torch.sort(logits, dim=-1, descending=True, stable=True)
    best_TX, ids_TX = best[:, : static.top_k], order[:, : static.top_k]
    if static.kind == "topk_softmax":
        weights_TX = torch.softmax(best_TX, dim=-1)
    else:
        weights_TX = torch.softmax(logits, dim=-1).gather(-1, ids_TX)
    if static.renormalize:
        weights_TX = weights_TX / weights_TX.sum(-1, keepdim=True)
    return weights_TX, ids_TX.to(torch.int32)


def moe_experts_reference(
    static: MoeSpec,
    x_TH: torch.Tensor,
    weights_TX: torch.Tensor,
    ids_TX: torch.Tensor,
    w13: DenseWeight,
    w2: DenseWeight,
    b13_E2I: torch.Tensor | None,
    b2_EH: torch.Tensor | None,
) -> torch.Tensor:
    """Sum over a token's experts of weight * (act(x @ w13.T + b13) @ w2.T + b2), rounded once."""
    dtype = compute_dtype(x_TH)
    out_TH = torch.zeros(x_TH.shape, dtype=dtype, device=x_TH.device)
    for expert in sorted(set(ids_TX.flatten().tolist())):
        token, place = (ids_TX == expert).nonzero(as_tuple=True)
        h = _product(x_TH[token].to(dtype), w13, b13_E2I, expert)
        y = _product(_activate(static, h), w2, b2_EH, expert)
        out_TH.index_add_(0, token, y * weights_TX[token, place, None].to(dtype))
    return out_TH.to(x_TH.dtype)


def _product(x: torch.Tensor, weight: DenseWeight, bias: torch.Tensor | None, expert: int) -> torch.Tensor:
    y = x @ weight.tensor_NK[expert].to(x.dtype).T
    return y if bias is None else y + bias[expert].to(x.dtype)


def _activate(static: MoeSpec, h: torch.Tensor) -> torch.Tensor:
    return silu_mul(h) if static.activation == "silu_mul" else swiglu_clipped(h, static.alpha, static.limit)


def _condition(
    static: MoeSpec,
    x_TH: torch.Tensor,
    weights_TX: torch.Tensor,
    ids_TX: torch.Tensor,
    w13: DenseWeight,
    w2: DenseWeight,
    b13_E2I: torch.Tensor | None,
    b2_EH: torch.Tensor | None,
) -> torch.Tensor:
    """Errors of both products, and of the hidden values rounded to the activation dtype between them."""
    rounding = unit_roundoff(static.dtype) / unit_roundoff("float32") if static.dtype != "float32" else 0.0
    size_TH = torch.zeros_like(x_TH)
    for expert in sorted(set(ids_TX.flatten().tolist())):
        token, place = (ids_TX == expert).nonzero(as_tuple=True)
        first, second = w13.tensor_NK[expert], w2.tensor_NK[expert]
        h = _product(x_TH[token], w13, b13_E2I, expert)
        blur = static.hidden_size**0.5 * (x_TH[token].abs() @ first.abs().T)
        slope = _slope(static, h)
        hidden = static.intermediate_size**0.5 * _activate(static, h).abs() + _halves(slope * blur)
        rounded = (_activate(static, h).square() + _halves((slope * h).square())) @ second.square().T
        size = hidden @ second.abs().T + rounding * (
            rounded.sqrt() + _product(_activate(static, h), w2, b2_EH, expert).abs()
        )
        if b2_EH is not None:
            size = size + b2_EH[expert].abs()
        size_TH.index_add_(0, token, size * weights_TX[token, place, None])
    return size_TH


def _slope(static: MoeSpec, h_T2I: torch.Tensor) -> torch.Tensor:
    """|d act / d h| for both halves; the gate's own slope is at most 1.1 (1.1 too for the clipped form)."""
    gate, up = h_T2I.chunk(2, dim=-1)
    shift, alpha = (0.0, 1.0) if static.activation == "silu_mul" else (1.0, static.alpha)
    return torch.cat((1.1 * (up.abs() + shift), (gate * torch.sigmoid(alpha * gate)).abs()), dim=-1)


def _halves(x_T2I: torch.Tensor) -> torch.Tensor:
    gate, up = x_T2I.chunk(2, dim=-1)
    return gate + up


def _route_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    cases: tuple[tuple[str, int, int, int, RouteKind, bool], ...] = (
        ("one-token", 1, 8, 2, "softmax_topk", True),
        ("no-renormalize", 9, 60, 6, "softmax_topk", False),
        ("topk-softmax", 7, 32, 4, "topk_softmax", False),
        ("all-experts", 3, 5, 5, "topk_softmax", True),
    )
    for label, T, E, X, kind, renormalize in cases:
        static = RouteSpec(num_experts=E, top_k=X, kind=kind, renormalize=renormalize, dtype=dtype_name(dtype))
        yield Sample(label=label, static=static, args=((2 * torch.randn(T, E, generator=gen)).to(dtype),))
    ties = torch.tensor([[1, 3, 3, 0, 3, 1, 1, -2], [0, 0, 0, 0, 0, 0, 0, 0]], dtype=dtype)
    static = RouteSpec(num_experts=8, top_k=4, kind="softmax_topk", renormalize=True, dtype=dtype_name(dtype))
    yield Sample(label="ties", static=static, args=(ties,))


def _expert_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    cases = (
        ("one-token", 1, (4, 2), (32, 24), False),
        ("odd", 13, (8, 3), (48, 40), False),
        ("clipped-bias", 6, (4, 4), (64, 32), True),
    )
    for label, T, (E, X), (H, width), clipped in cases:
        static = MoeSpec(
            num_experts=E,
            top_k=X,
            hidden_size=H,
            intermediate_size=width,
            activation="swiglu_clipped" if clipped else "silu_mul",
            alpha=1.702 if clipped else 0.0,
            limit=7.0 if clipped else 0.0,
            bias=clipped,
            dtype=dtype_name(dtype),
        )
        x = torch.randn(T, H, generator=gen).to(dtype)
        ids = torch.stack([torch.randperm(E, generator=gen)[:X] for _ in range(T)]).to(torch.int32)
        weights = torch.softmax(torch.randn(T, X, generator=gen), dim=-1)
        w13 = DenseWeight((torch.randn(E, 2 * width, H, generator=gen) / H**0.5).to(dtype))
        w2 = DenseWeight((torch.randn(E, H, width, generator=gen) / width**0.5).to(dtype))
        biases = (torch.randn(E, 2 * width, generator=gen).to(dtype), torch.randn(E, H, generator=gen).to(dtype))
        b13, b2 = biases if clipped else (None, None)
        yield Sample(label=label, static=static, args=(x, weights, ids, w13, w2, b13, b2))


MOE_ROUTE = OpSpec(
    name="moe_route",
    family="moe",
    signature="moe_route(logits_TE) -> (weights_TX, ids_TX)",
    static_type=RouteSpec,
    reference=moe_route_reference,
    samples=_route_samples,
    error=ErrorModel(kind="float", c_acc=32.0),
    decomposition=torch_composition(moe_route_reference),
)

MOE_EXPERTS = OpSpec(
    name="moe_experts",
    family="moe",
    signature="moe_experts(x_TH, weights_TX, ids_TX, w13, w2, b13_E2I, b2_EH) -> out_TH",
    static_type=MoeSpec,
    reference=moe_experts_reference,
    samples=_expert_samples,
    # Providers may round between the products and per expert; the reference rounds once.
    error=ErrorModel(kind="float", nmse_factor=16.0, condition=_condition),
)

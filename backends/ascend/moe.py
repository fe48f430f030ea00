"""Mixture of experts by torch_npu: gating, and grouped matrix products over tokens sorted by expert.

Suffixes: T tokens, H hidden, E experts, X experts per token, P = T * X sorted rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from isoinfer.backends.ops import (
    SILU_MUL,
    SWIGLU_CLIPPED,
    ActivationSpec,
    DenseWeight,
    MoeSpec,
    OpSpec,
    RouteSpec,
    SwigluClippedSpec,
)

Function = Callable[..., Any]
MAX_GATED_EXPERTS = 2048
MAX_GROUPS = 1024
MAX_INNER = 65535
SOFTMAX = 0
COUNTS, SPLIT_ROWS, ONE_OUTPUT = 1, 0, 2
NOT_QUANTISED = -1


def refuse_route(spec: RouteSpec) -> str:
    """Why npu_moe_gating_top_k does not serve `spec`, or ""."""
    if not 2 < spec.num_experts <= MAX_GATED_EXPERTS:
        return f"npu_moe_gating_top_k takes 3 to {MAX_GATED_EXPERTS} experts, not {spec.num_experts}"
    return ""


def make_route(spec: RouteSpec, npu: Any) -> Function:
    """moe_route(logits_TE) -> (weights_TX, ids_TX).

    The operator's softmax is over all experts and never renormalised. A softmax over the best logits is taken
    of those themselves: divided by their sum, the small weights of the other softmax would be rounded twice.
    """

    def moe_route(logits_TE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = logits_TE.float().contiguous()
        weights_TX, ids_TX, _ = npu.npu_moe_gating_top_k(logits, spec.top_k, norm_type=SOFTMAX, renorm=0)
        if spec.kind == "topk_softmax":
            weights_TX = torch.softmax(logits.gather(-1, ids_TX.long()), -1)
        return (weights_TX / weights_TX.sum(-1, keepdim=True) if spec.renormalize else weights_TX), ids_TX

    return moe_route


def refuse_experts(spec: MoeSpec) -> str:
    """Why the grouped products do not serve `spec`, or ""."""
    if spec.dtype not in ("float16", "bfloat16"):
        return f"npu_grouped_matmul is used for float16 and bfloat16, not {spec.dtype}"
    if spec.bias:
        return "biases of experts are not given to npu_grouped_matmul: what dtype it wants for them is not documented"
    if not 1 < spec.num_experts <= MAX_GROUPS:
        return f"npu_grouped_matmul takes 2 to {MAX_GROUPS} groups, not {spec.num_experts}"
    if max(spec.hidden_size, 2 * spec.intermediate_size) > MAX_INNER:
        return f"npu_grouped_matmul takes inner axes up to {MAX_INNER}"
    return ""


def make_experts(spec: MoeSpec, npu: Any, bind: Callable[[OpSpec, Any], Function]) -> Function:
    """moe_experts(x_TH, weights_TX, ids_TX, w13, w2, None, None) -> out_TH."""
    activation = bind_activation(spec, bind)

    def product(x_PK: torch.Tensor, weight: DenseWeight, counts_E: torch.Tensor) -> torch.Tensor:
        out_PN: torch.Tensor = npu.npu_grouped_matmul(
            [x_PK],
            [weight.tensor_NK.transpose(1, 2)],
            group_list=counts_E,
            group_list_type=COUNTS,
            group_type=SPLIT_ROWS,
            split_item=ONE_OUTPUT,
        )[0]
        return out_PN

    def moe_experts(
        x_TH: torch.Tensor,
        weights_TX: torch.Tensor,
        ids_TX: torch.Tensor,
        w13: DenseWeight,
        w2: DenseWeight,
        b13_E2I: torch.Tensor | None,
        b2_EH: torch.Tensor | None,
    ) -> torch.Tensor:
        sorted_PH, row_P, counts_E, _ = npu.npu_moe_init_routing_v2(
            x_TH.contiguous(),
            ids_TX,
            active_num=ids_TX.numel(),
            expert_num=spec.num_experts,
            expert_tokens_num_type=COUNTS,
            expert_tokens_num_flag=True,
            quant_mode=NOT_QUANTISED,
            active_expert_range=[0, spec.num_experts],
            row_idx_type=0,
        )
        y_PH = product(activation(product(sorted_PH, w13, counts_E)), w2, counts_E)
        out_TH: torch.Tensor = npu.npu_moe_token_unpermute(y_PH, row_P, probs=weights_TX.to(y_PH.dtype))
        return out_TH

    return moe_experts


def bind_activation(spec: MoeSpec, bind: Callable[[OpSpec, Any], Function]) -> Function:
    """The activation between the products of `spec`."""
    if spec.activation == "silu_mul":
        return bind(SILU_MUL, ActivationSpec(intermediate_size=spec.intermediate_size, dtype=spec.dtype))
    clipped = SwigluClippedSpec(
        intermediate_size=spec.intermediate_size, alpha=spec.alpha, limit=spec.limit, dtype=spec.dtype
    )
    return bind(SWIGLU_CLIPPED, clipped)

"""Ops in torch for a device with canonical KV and dense weights: what serves where no kernel of ours does.

Ops on plain tensors need nothing here: their reference is already torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from isoinfer.backends.interface import AttentionBatch
from isoinfer.backends.ops import (
    LINEAR,
    PAGED_ATTENTION,
    SILU_MUL,
    SWIGLU_CLIPPED,
    ActivationSpec,
    AttentionSpec,
    CanonicalKV,
    DenseWeight,
    LinearSpec,
    MoeSpec,
    OpSpec,
    SwigluClippedSpec,
)

Function = Callable[..., Any]


def make_linear(spec: LinearSpec) -> Function:
    """linear(x_TK, weight: DenseWeight, bias_N | None) -> out_TN. Float32 results are not rounded to 16 bits first."""
    widened = spec.out_dtype != spec.dtype

    def linear(x_TK: torch.Tensor, weight: DenseWeight, bias_N: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x_TK, weight.tensor_NK, bias_N)

    def linear_widened(x_TK: torch.Tensor, weight: DenseWeight, bias_N: torch.Tensor | None) -> torch.Tensor:
        if x_TK.is_cuda:
            out_TN = torch.mm(x_TK, weight.tensor_NK.T, out_dtype=torch.float32)
        else:
            out_TN = F.linear(x_TK.float(), weight.tensor_NK.float())
        return out_TN if bias_N is None else out_TN + bias_N.float()

    return linear_widened if widened else linear


def make_moe_experts(spec: MoeSpec, bind: Callable[[OpSpec, Any], Function]) -> Function:
    """moe_experts(x_TH, weights_TX, ids_TX, w13, w2, b13, b2) -> out_TH: every expert over every token, weighted.

    Without a look at the ids on the host: a token's weight for an expert that it did not choose is zero. The
    products are those of the op linear, so rows depend on the batch exactly where its rows do.
    """
    if spec.activation == "silu_mul":
        activation = bind(SILU_MUL, ActivationSpec(intermediate_size=spec.intermediate_size, dtype=spec.dtype))
    else:
        clipped = SwigluClippedSpec(
            intermediate_size=spec.intermediate_size, alpha=spec.alpha, limit=spec.limit, dtype=spec.dtype
        )
        activation = bind(SWIGLU_CLIPPED, clipped)
    first = bind(LINEAR, _expert_linear(spec, spec.hidden_size, 2 * spec.intermediate_size))
    second = bind(LINEAR, _expert_linear(spec, spec.intermediate_size, spec.hidden_size))

    def moe_experts(
        x_TH: torch.Tensor,
        weights_TX: torch.Tensor,
        ids_TX: torch.Tensor,
        w13: DenseWeight,
        w2: DenseWeight,
        b13_E2I: torch.Tensor | None,
        b2_EH: torch.Tensor | None,
    ) -> torch.Tensor:
        gate_TE = weights_TX.new_zeros((x_TH.shape[0], spec.num_experts)).scatter_add(1, ids_TX.long(), weights_TX)
        out_TH = torch.zeros(x_TH.shape, dtype=torch.float32, device=x_TH.device)
        for expert in range(spec.num_experts):
            bias13 = None if b13_E2I is None else b13_E2I[expert]
            bias2 = None if b2_EH is None else b2_EH[expert]
            inner = activation(first(x_TH, DenseWeight(w13.tensor_NK[expert]), bias13))
            y_TH = second(inner, DenseWeight(w2.tensor_NK[expert]), bias2)
            out_TH.addcmul_(y_TH.float(), gate_TE[:, expert, None].float())
        return out_TH.to(x_TH.dtype)

    return moe_experts


def _expert_linear(spec: MoeSpec, in_features: int, out_features: int) -> LinearSpec:
    return LinearSpec(
        in_features=in_features,
        out_features=out_features,
        bias=spec.bias,
        quant=None,
        dtype=spec.dtype,
        out_dtype=spec.dtype,
    )


class DevicePlan(Protocol):
    """What this file reads of a backend's attention plan: int32 device tensors."""

    @property
    def q_len_R(self) -> torch.Tensor: ...
    @property
    def kv_len_R(self) -> torch.Tensor: ...
    @property
    def table_RB(self) -> torch.Tensor: ...


def make_paged_attention(spec: AttentionSpec) -> Function:
    """paged_attention(q_TND, kv, plan, sinks_N | None, out_TND): the reference, row by row. It waits for the device."""

    def paged_attention(
        q_TND: torch.Tensor, kv: CanonicalKV, plan: DevicePlan, sinks_N: torch.Tensor | None, out_TND: torch.Tensor
    ) -> None:
        kv_len_R = plan.kv_len_R.cpu().numpy()
        batch = AttentionBatch(
            query_len_R=plan.q_len_R.cpu().numpy(),
            kv_len_upper_R=kv_len_R,
            kv_len_device_R=plan.kv_len_R,
            block_table_RB=plan.table_RB,
            block_size=spec.block_size,
            maybe_kv_len_host_R=kv_len_R,
        )
        PAGED_ATTENTION.reference(spec, q_TND, kv, batch, sinks_N, out_TND)

    return paged_attention

"""Ops served by torch where our kernels cannot: for the CPU's own weights and KV shapes.

Ops on plain tensors need nothing here: their reference is already torch. Fixed 32-row tiles make a
linear's rows independent of the batch (`deterministic`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from isoinfer.backends.cpu.kv import BLOCK_SIZE, CpuAttentionPlan, CpuLayerKV
from isoinfer.backends.cpu.weights import Experts, OneDnnLinear
from isoinfer.backends.ops import (
    AttentionSpec,
    DenseWeight,
    EmbeddingSpec,
    Int4Weight,
    Int8Weight,
    KVWriteSpec,
    LinearSpec,
    MoeSpec,
)

TILE_ROWS = 32
WIDENED_OUTPUTS = 4096
"""Outputs whose weights are widened to float32 at the same time."""
Function = Callable[..., Any]


def make_embedding(spec: EmbeddingSpec) -> Function:
    """embedding(ids_T, weight: DenseWeight) -> out_TH."""

    def embedding(ids_T: torch.Tensor, weight: DenseWeight) -> torch.Tensor:
        return weight.tensor_NK.index_select(0, ids_T)

    return embedding


def make_linear(spec: LinearSpec, deterministic: bool) -> Function:
    """linear(x_TK, weight: OneDnnLinear | DenseWeight | Int8Weight | Int4Weight, bias_N | None) -> out_TN."""
    out_dtype: torch.dtype = getattr(torch, spec.out_dtype)

    def product(x_TK: torch.Tensor, weight: Any, bias_N: torch.Tensor | None) -> torch.Tensor:
        if isinstance(weight, OneDnnLinear):
            out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x_TK, weight.packed, bias_N, "none", [], "")
            return out.to(out_dtype)
        if isinstance(weight, Int8Weight | Int4Weight):
            out = F.linear(x_TK.float(), weight.dense(torch.float32))
            return (out if bias_N is None else out + bias_N.float()).to(out_dtype)
        if out_dtype == x_TK.dtype:
            return F.linear(x_TK, weight.tensor_NK, bias_N)
        wide = [F.linear(x_TK.float(), chunk.float()) for chunk in torch.split(weight.tensor_NK, WIDENED_OUTPUTS)]
        out = torch.cat(wide, -1)
        return out if bias_N is None else out + bias_N.float()

    def tiled(x_TK: torch.Tensor, weight: Any, bias_N: torch.Tensor | None) -> torch.Tensor:
        rows = x_TK.shape[0]
        padded = F.pad(x_TK, (0, 0, 0, -rows % TILE_ROWS))
        tiles = [product(tile.contiguous(), weight, bias_N) for tile in torch.split(padded, TILE_ROWS)]
        return torch.cat(tiles)[:rows]

    return tiled if deterministic else product


def make_moe_experts(spec: MoeSpec, linear13: Function, activation: Function, linear2: Function) -> Function:
    """moe_experts(x_TH, weights_TX, ids_TX, w13, w2, b13, b2) -> out_TH: one expert after the other."""

    def moe_experts(
        x_TH: torch.Tensor,
        weights_TX: torch.Tensor,
        ids_TX: torch.Tensor,
        w13: Experts,
        w2: Experts,
        b13_E2I: torch.Tensor | None,
        b2_EH: torch.Tensor | None,
    ) -> torch.Tensor:
        out_TH = torch.zeros(x_TH.shape, dtype=torch.float32)
        for expert in torch.unique(ids_TX).tolist():
            rows, column = torch.where(ids_TX == expert)
            bias13 = None if b13_E2I is None else b13_E2I[expert]
            bias2 = None if b2_EH is None else b2_EH[expert]
            inner = activation(linear13(x_TH[rows], w13.linears[expert], bias13))
            y = linear2(inner, w2.linears[expert], bias2).float()
            out_TH.index_add_(0, rows, y * weights_TX[rows, column, None].float())
        return out_TH.to(x_TH.dtype)

    return moe_experts


def make_kv_write(spec: KVWriteSpec) -> Function:
    """kv_write(k_TKD, v_TKD, kv, slots_T)."""

    def kv_write(k_TKD: torch.Tensor, v_TKD: torch.Tensor, kv: CpuLayerKV, slots_T: torch.Tensor) -> None:
        block, offset = slots_T.long() // BLOCK_SIZE, slots_T.long() % BLOCK_SIZE
        pack = kv.k_BKDSp.shape[-1]
        k_TKDp = k_TKD.to(kv.k_BKDSp.dtype).reshape(*k_TKD.shape[:2], spec.head_dim // pack, pack)
        kv.k_BKDSp.permute(0, 3, 1, 2, 4)[block, offset] = k_TKDp
        kv.v_BKSD.transpose(1, 2)[block, offset] = v_TKD.to(kv.v_BKSD.dtype)

    return kv_write


def make_paged_attention(spec: AttentionSpec, deterministic: bool) -> Function:
    """paged_attention(q_TND, kv, plan, sinks_N | None, out_TND), one row's pages at a time.

    `deterministic`: one query at a time, since the bits of a product depend on how many it serves.
    """

    def paged_attention(
        q_TND: torch.Tensor,
        kv: CpuLayerKV,
        plan: CpuAttentionPlan,
        sinks_N: torch.Tensor | None,
        out_TND: torch.Tensor,
    ) -> None:
        floor_R = [0] * plan.num_rows if plan.maybe_floor_R is None else plan.maybe_floor_R.tolist()
        rows = zip(plan.q_start_R.tolist(), plan.q_len_R.tolist(), plan.kv_len_R.tolist(), floor_R, strict=True)
        for row, (start, q_len, kv_len, floor) in enumerate(rows):
            queries = 1 if deterministic else q_len
            for first in range(0, q_len, queries):
                at = slice(start + first, start + first + queries)
                position = kv_len - q_len + first
                oldest = max(floor, position + 1 - spec.window) if spec.window else floor
                k_LKD, v_LKD = _visible(kv, plan.table_RB[row], oldest, position + queries)
                out_TND[at] = _attend(spec, q_TND[at], k_LKD, v_LKD, sinks_N)

    return paged_attention


def _visible(kv: CpuLayerKV, table_B: torch.Tensor, oldest: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V `[L, K, D]` of the keys from `oldest` to `end`."""
    first = oldest // BLOCK_SIZE
    ids_B = table_B[first : -(-end // BLOCK_SIZE)].long()
    seen = slice(oldest - first * BLOCK_SIZE, end - first * BLOCK_SIZE)
    return kv.keys(ids_B).flatten(0, 1)[seen], kv.values(ids_B).flatten(0, 1)[seen]


def _attend(
    spec: AttentionSpec, q_QND: torch.Tensor, k_LKD: torch.Tensor, v_LKD: torch.Tensor, sinks_N: torch.Tensor | None
) -> torch.Tensor:
    """Attention of Q queries at the end of L keys, in float32."""
    group = spec.num_heads // spec.num_kv_heads
    queries, keys = q_QND.shape[0], k_LKD.shape[0]
    k_NDL = k_LKD.float().repeat_interleave(group, 1).permute(1, 2, 0)
    v_NLD = v_LKD.float().repeat_interleave(group, 1).transpose(0, 1)
    scores_NQL = (q_QND.float().transpose(0, 1) * spec.scale) @ k_NDL
    if spec.softcap:
        scores_NQL = spec.softcap * torch.tanh(scores_NQL / spec.softcap)
    position_Q1 = torch.arange(keys - queries, keys)[:, None]
    key_L = torch.arange(keys)
    hidden_QL = key_L > position_Q1
    if spec.window:
        hidden_QL |= key_L <= position_Q1 - spec.window
    scores_NQL.masked_fill_(hidden_QL, float("-inf"))
    if sinks_N is not None:
        column_NQ1 = sinks_N.float()[:, None, None].expand(-1, queries, 1)
        weights_NQL = torch.cat((scores_NQL, column_NQ1), -1).softmax(-1)[..., :keys]
    else:
        weights_NQL = scores_NQL.softmax(-1)
    return (weights_NQL @ v_NLD).transpose(0, 1).to(q_QND.dtype)

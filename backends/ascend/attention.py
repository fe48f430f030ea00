"""Paged attention by torch_npu's fused inference attention, and by torch where nothing else fits.

The operator is called in its TND layout with a block table: query ends cumulative, KV lengths per request,
both as host lists. Suffixes: T tokens, N query heads, K KV heads, D head dim, B blocks, S block size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch

from isoinfer.backends.ascend.plan import AscendAttentionPlan
from isoinfer.backends.interface import AttentionBatch
from isoinfer.backends.ops import PAGED_ATTENTION, AttentionSpec, CanonicalKV
from isoinfer.errors import BackendError

Function = Callable[..., Any]
MASK_SIZE = 2048
"""The operator's causal and band modes want one fixed mask of this size, whatever the lengths are."""
HEAD_DIMS = (64, 128, 192)
MAX_HEAD_RATIO = 64
MAX_KV_WIDTH = 65535
CAUSAL, BAND = 3, 4


def refuse_fused(spec: AttentionSpec) -> str:
    """Why the fused operator does not serve `spec`, or ""."""
    if spec.dtype not in ("float16", "bfloat16"):
        return f"the fused operator takes float16 or bfloat16, not {spec.dtype}"
    if spec.softcap is not None:
        return "the fused operator has no softcap"
    if spec.head_dim not in HEAD_DIMS:
        return f"the fused operator's TND layout has head dims {', '.join(map(str, HEAD_DIMS))}, not {spec.head_dim}"
    if spec.num_heads // spec.num_kv_heads > MAX_HEAD_RATIO:
        return f"the fused operator takes up to {MAX_HEAD_RATIO} query heads to a KV head"
    if spec.block_size % 128 or not 128 <= spec.block_size <= 512:
        return f"the fused operator wants KV blocks of 128, 256, 384 or 512 tokens, not {spec.block_size}"
    if spec.num_kv_heads * spec.head_dim > MAX_KV_WIDTH:
        return f"the fused operator takes at most {MAX_KV_WIDTH} KV values a token"
    if spec.has_sinks and (spec.dtype != "bfloat16" or spec.head_dim > 128):
        return "the fused operator takes sinks in bfloat16 with head dims up to 128"
    return ""


def causal_mask(device: torch.device) -> torch.Tensor:
    """The fixed mask: 1 hides."""
    return torch.ones((MASK_SIZE, MASK_SIZE), dtype=torch.int8, device=device).triu(1)


def make_fused(spec: AttentionSpec, npu: Any, mask: Callable[[], torch.Tensor], one_phase: bool) -> Function:
    """paged_attention(q_TND, kv, plan, sinks_N | None, out_TND).

    `one_phase`: rows with one query and rows with several may not share a call (Atlas A5).
    """
    mask_SS = mask()
    band = {} if spec.window is None else {"pre_tokens": spec.window - 1, "next_tokens": 0}

    def paged_attention(
        q_TND: torch.Tensor,
        kv: CanonicalKV,
        plan: AscendAttentionPlan,
        sinks_N: torch.Tensor | None,
        out_TND: torch.Tensor,
    ) -> None:
        k_BSX, v_BSX = (side.view(*side.shape[:2], -1) for side in (kv.k_BSKD, kv.v_BSKD))
        for first, end in _phases(plan) if one_phase else ((0, plan.num_rows),):
            start = plan.q_end_R[first - 1] if first else 0
            tokens = slice(start, plan.q_end_R[end - 1])
            part_TND, _ = npu.npu_fused_infer_attention_score_v2(
                q_TND[tokens].contiguous(),
                k_BSX,
                v_BSX,
                atten_mask=mask_SS,
                actual_seq_qlen=[row_end - start for row_end in plan.q_end_R[first:end]],
                actual_seq_kvlen=[*plan.kv_len_host_R[first:end]],
                block_table=plan.table_RB[first:end],
                learnable_sink=sinks_N,
                num_query_heads=spec.num_heads,
                num_key_value_heads=spec.num_kv_heads,
                softmax_scale=spec.scale,
                input_layout="TND",
                sparse_mode=BAND if band else CAUSAL,
                block_size=spec.block_size,
                **band,
            )
            out_TND[tokens].copy_(part_TND)

    return paged_attention


def _phases(plan: AscendAttentionPlan) -> Iterator[tuple[int, int]]:
    """Runs of neighbouring rows that all decode or all do not."""
    decodes = [length == 1 for length in plan.q_len_host_R]
    first = 0
    for row in range(1, len(decodes) + 1):
        if row == len(decodes) or decodes[row] != decodes[first]:
            yield first, row
            first = row


def make_torch(spec: AttentionSpec, is_capturing: Callable[[], bool]) -> Function:
    """paged_attention by the reference, row by row with the plan's host lengths: it does not wait for the device."""

    def paged_attention(
        q_TND: torch.Tensor,
        kv: CanonicalKV,
        plan: AscendAttentionPlan,
        sinks_N: torch.Tensor | None,
        out_TND: torch.Tensor,
    ) -> None:
        if is_capturing():
            raise BackendError("torch's attention bakes lengths into a graph; run without graphs (enforce_eager)")
        kv_len_R = np.array(plan.kv_len_host_R, dtype=np.int32)
        batch = AttentionBatch(
            query_len_R=np.array(plan.q_len_host_R, dtype=np.int32),
            kv_len_upper_R=kv_len_R,
            kv_len_device_R=cast(torch.Tensor, kv_len_R),  # the reference only lists them
            block_table_RB=plan.table_RB,
            block_size=spec.block_size,
            maybe_kv_len_host_R=kv_len_R,
        )
        PAGED_ATTENTION.reference(spec, q_TND, kv, batch, sinks_N, out_TND)

    return paged_attention

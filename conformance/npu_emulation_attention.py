"""The fused attention operator and the KV write, with their constraints.

Suffixes: T tokens, R rows, N query heads, K KV heads, D head dim, B blocks, S tokens in a block, L keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from isoinfer.backends.interface import AttentionBatch
from isoinfer.backends.ops import AttentionSpec, CanonicalKV, dtype_name
from isoinfer.backends.ops.attention import paged_attention_reference
from isoinfer.conformance.npu_emulation_rules import (
    require,
    require_contiguous,
    require_dtype,
    require_host_list,
    require_same_dtype,
)

NO_LIMIT = 2147483647
MASK_SIZE = 2048
MAX_BATCH = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedCall:
    """The arguments of one call, checked by nobody yet."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    q_ends: Any
    kv_lens: Any
    table: torch.Tensor | None
    sinks: torch.Tensor | None
    num_heads: int
    num_kv_heads: int
    scale: float | None
    pre_tokens: int
    next_tokens: int
    layout: str
    sparse_mode: int
    block_size: int


def attend(call: FusedCall, one_phase: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention, and the empty log-sum-exp that is there when nobody asks for it."""
    _check_tensors(call)
    _check_heads(call)
    _check_mask(call)
    _check_pages(call)
    q_len_R = _check_lengths(call, one_phase)
    assert call.table is not None and call.scale is not None  # noqa: PT018 - both were checked above
    kv_len_R = np.array(call.kv_lens, dtype=np.int32)
    batch = AttentionBatch(
        query_len_R=np.array(q_len_R, dtype=np.int32),
        kv_len_upper_R=kv_len_R,
        kv_len_device_R=torch.from_numpy(kv_len_R),
        block_table_RB=call.table,
        block_size=call.block_size,
        maybe_kv_len_host_R=kv_len_R,
    )
    head_dim = call.query.shape[-1]
    shape = (call.key.shape[0], call.block_size, call.num_kv_heads, head_dim)
    spec = AttentionSpec(
        num_heads=call.num_heads,
        num_kv_heads=call.num_kv_heads,
        head_dim=head_dim,
        scale=call.scale,
        block_size=call.block_size,
        window=call.pre_tokens + 1 if call.sparse_mode == 4 else None,
        softcap=None,
        has_sinks=call.sinks is not None,
        dtype=dtype_name(call.query.dtype),
    )
    out_TND = torch.empty_like(call.query)
    kv = CanonicalKV(call.key.view(shape), call.value.view(shape))
    paged_attention_reference(spec, call.query, kv, batch, call.sinks, out_TND)
    return out_TND, torch.zeros(1)


def _check_tensors(call: FusedCall) -> None:
    require(call.layout == "TND", "only the TND layout is emulated", call.layout)
    require(call.scale is not None, "softmax_scale must be given: its default is 1.0, not 1/sqrt(D)")
    require_dtype((torch.float16, torch.bfloat16), query=call.query)
    require_same_dtype(query=call.query, key=call.key, value=call.value)
    require_contiguous(query=call.query, key=call.key, value=call.value)
    require(call.query.dim() == 3, "query must be [T, N, D]", call.query.shape)


def _check_heads(call: FusedCall) -> None:
    _, heads, head_dim = call.query.shape
    require(call.num_heads == heads, "num_query_heads must be that of query (its default is 1)", call.num_heads, heads)
    require(call.num_kv_heads > 0, "num_key_value_heads must be given", call.num_kv_heads)
    ratio, rest = divmod(heads, call.num_kv_heads)
    require(rest == 0 and ratio <= 64, "query heads must be at most 64 to a KV head", heads, call.num_kv_heads)
    require(head_dim in (64, 128, 192), "TND takes head dims 64, 128 and 192", head_dim)
    if call.sinks is not None:
        require(call.sinks.dtype == torch.bfloat16, "learnable_sink must be bfloat16", call.sinks.dtype)
        require(call.sinks.shape == (heads,), "learnable_sink must be [N]", call.sinks.shape)
        require(head_dim <= 128, "learnable_sink needs a head dim up to 128", head_dim)


def _check_mask(call: FusedCall) -> None:
    require(call.sparse_mode in (3, 4), "causal attention is sparse_mode 3, a window 4", call.sparse_mode)
    mask = call.mask
    require(mask is not None, "sparse_mode 3 and 4 need a mask")
    assert mask is not None
    require_dtype((torch.int8, torch.bool, torch.uint8), atten_mask=mask)
    require(mask.shape == (MASK_SIZE, MASK_SIZE), "the mask must be 2048 x 2048, whatever the lengths are", mask.shape)
    upper = torch.ones_like(mask[:4, :4]).triu(1)
    require(bool((mask[:4, :4] == upper).all()), "the mask must be upper triangular: 1 hides")
    limits = (call.pre_tokens, call.next_tokens)
    if call.sparse_mode == 3:
        require(limits == (NO_LIMIT, NO_LIMIT), "sparse_mode 3 ignores pre_tokens and next_tokens", *limits)
    else:
        require(0 <= call.pre_tokens < NO_LIMIT and call.next_tokens == 0, "a window needs both limits", *limits)


def _check_pages(call: FusedCall) -> None:
    size, table = call.block_size, call.table
    require(size % 128 == 0 and 128 <= size <= 512, "block_size must be a multiple of 128 up to 512", size)
    require(call.key.dim() == 3 and call.key.shape[1] == size, "the cache must be [B, S, K * D]", call.key.shape)
    require(call.key.shape == call.value.shape, "K and V must have one shape", call.key.shape, call.value.shape)
    width = call.num_kv_heads * call.query.shape[-1]
    require(call.key.shape[2] == width <= 65535, "K * D must be that of the cache and at most 65535", width)
    require(table is not None, "block_table must be given")
    assert table is not None
    require_dtype((torch.int32,), block_table=table)
    require_contiguous(block_table=table)
    require(bool(((table >= 0) & (table < call.key.shape[0])).all()), "block ids must be in the cache")


def _check_lengths(call: FusedCall, one_phase: bool) -> list[int]:
    """Queries of each row."""
    assert call.table is not None
    require_host_list("actual_seq_qlen", call.q_ends)
    require_host_list("actual_seq_kvlen", call.kv_lens)
    ends, lengths, rows = [*call.q_ends], [*call.kv_lens], call.table.shape[0]
    require(len(ends) == len(lengths) == rows, "one length a row of the table", len(ends), len(lengths), rows)
    require(rows <= MAX_BATCH, f"TND takes at most {MAX_BATCH} rows", rows)
    queries = [end - start for start, end in pairwise([0, *ends])]
    cumulative = min(queries) > 0 and ends[-1] == call.query.shape[0]
    require(cumulative, "actual_seq_qlen must be cumulative and end at T", ends, call.query.shape[0])
    room = call.table.shape[1] * call.block_size
    fits = all(count <= length <= room for count, length in zip(queries, lengths, strict=True))
    require(fits, "actual_seq_kvlen must be per row, not cumulative, with a block table", lengths, queries, room)
    mixed = one_phase and len({count == 1 for count in queries}) > 1
    require(not mixed, "Atlas A5 takes rows that decode and rows that do not in separate calls", queries)
    return queries


def scatter(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    mode: str | None,
) -> None:
    """The write of K and V."""
    require(mode == "Norm", "cache_mode must be Norm for [B, S, K, D]; its default is PA_NZ", mode)
    require_same_dtype(key=key, value=value, key_cache=key_cache, value_cache=value_cache)
    require_contiguous(key=key, value=value, key_cache=key_cache, value_cache=value_cache, slot_mapping=slots)
    require_dtype((torch.int32, torch.int64), slot_mapping=slots)
    require(slots.shape == key.shape[:1], "one slot a token", slots.shape, key.shape)
    room = key_cache.shape[0] * key_cache.shape[1]
    require(bool(((slots >= 0) & (slots < room)).all()), "slots must be in range: there is no -1", slots.tolist(), room)
    require(len(set(slots.tolist())) == slots.numel(), "slots must be distinct", slots.tolist())
    for new, cache in ((key, key_cache), (value, value_cache)):
        cache.view(-1, *cache.shape[2:])[slots.long()] = new

"""Attending over rings: the ring is read before it is written, and bound to what the layer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from isoinfer.backends.interface import RingBatch
from isoinfer.backends.ops.kv import CanonicalKV
from isoinfer.layers.attend import RingAttend
from isoinfer.layers.attention import AttentionConfig
from isoinfer.layers.batch import ForwardBatch, GroupInputs

Make = Callable[..., Any]
HEADS, KV_HEADS, DIM, TOKENS, WINDOW, RING = 4, 2, 8, 9, 3, 5
CONFIG = AttentionConfig(
    hidden_size=12,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_dim=DIM,
    rotary_dim=DIM,
    kv_group=1,
    window=WINDOW,
    qkv_bias=False,
    o_bias=False,
    qk_norm=False,
    norm_eps=1e-6,
    sinks=True,
    ring=True,
)


def batch(other: Any, start: int, end: int) -> ForwardBatch:
    """One row's tokens from `start` to `end`; its ring is number 1 of two and scratch."""
    positions_T = torch.arange(start, end, dtype=torch.int32)
    plan = RingBatch(
        query_len_R=np.array([end - start], dtype=np.int32),
        kv_len_R=torch.tensor([end], dtype=torch.int32),
        ring_R=torch.tensor([1], dtype=torch.int32),
        floor_R=torch.tensor([0], dtype=torch.int32),
        positions_T=positions_T,
        ring_T=torch.where(positions_T >= end - RING, 1, 2).to(torch.int32),
    )
    groups = (other, GroupInputs(slots_T=plan.ring_T, plan=plan))
    return ForwardBatch(token_ids_T=positions_T, positions_T=positions_T, groups=groups, num_tokens=end - start)


def test_a_chunk_longer_than_the_ring_sees_all_of_its_window(make_parts: Make, randn: Make, bound: Any) -> None:
    no_rope = torch.cat((torch.ones(TOKENS, DIM // 2), torch.zeros(TOKENS, DIM // 2)), dim=-1)
    sinks_N = torch.full((HEADS,), -torch.inf)  # a sink that takes nothing
    attend = RingAttend(make_parts({}), CONFIG, no_rope, sinks_N)
    assert [name for name, _ in bound] == ["rope", "window_attention", "ring_write"]
    assert (bound[1][1].window, bound[1][1].has_sinks) == (WINDOW, True)
    q, k, v = (randn(TOKENS, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    kv = CanonicalKV(*torch.full((2, 3, RING, KV_HEADS, DIM), torch.nan))
    steps = ((0, 3), (3, TOKENS))
    parts = [attend(*(x[a:b] for x in (q, k, v)), batch(None, a, b), kv) for a, b in steps]
    out_TND = torch.cat(parts)
    ahead = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)[None, :]
    seen = (ahead >= 0) & (ahead < WINDOW)
    plain = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1) for x in (q, k, v)), attn_mask=seen, enable_gqa=True
    )
    torch.testing.assert_close(out_TND, plain.transpose(0, 1), atol=1e-5, rtol=1e-5)
    last = torch.arange(TOKENS - RING, TOKENS)
    assert torch.equal(kv.v_BSKD[1, last % RING], v[last])
    assert kv.v_BSKD[0].isnan().all()

"""The attention layer: views instead of copies, KV written before attending, options bound only where present."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.backends.interface import AttentionBatch
from isoinfer.backends.ops.kv import CanonicalKV
from isoinfer.layers.attention import Attention, AttentionConfig
from isoinfer.layers.batch import ForwardBatch, GroupInputs

Make = Callable[..., Any]
HIDDEN, HEADS, KV_HEADS, DIM, TOKENS = 12, 4, 2, 8, 3


def config(**changes: Any) -> AttentionConfig:
    fields: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "num_heads": HEADS,
        "num_kv_heads": KV_HEADS,
        "head_dim": DIM,
        "rotary_dim": DIM,
        "kv_group": 0,
        "window": None,
        "qkv_bias": False,
        "o_bias": False,
        "qk_norm": False,
        "norm_eps": 1e-6,
        "sinks": False,
    }
    return AttentionConfig(**{**fields, **changes})


@pytest.fixture
def tensors(randn: Make) -> dict[str, torch.Tensor]:
    return {
        "a.qkv": randn((HEADS + 2 * KV_HEADS) * DIM, HIDDEN),
        "a.qkv_bias": randn((HEADS + 2 * KV_HEADS) * DIM),
        "a.o": randn(HIDDEN, HEADS * DIM),
        "a.o_bias": randn(HIDDEN),
        "a.q_norm": randn(DIM),
        "a.k_norm": randn(DIM),
        "a.sinks": randn(HEADS),
    }


@pytest.fixture
def batch() -> ForwardBatch:
    lengths = np.array([TOKENS], dtype=np.int32)
    plan = AttentionBatch(
        query_len_R=lengths,
        kv_len_upper_R=lengths,
        kv_len_device_R=torch.from_numpy(lengths),
        block_table_RB=torch.tensor([[1]], dtype=torch.int32),
        block_size=4,
        maybe_kv_len_host_R=lengths,
    )
    positions_T = torch.arange(TOKENS, dtype=torch.int32)
    group = GroupInputs(slots_T=positions_T + 4, plan=plan)
    return ForwardBatch(token_ids_T=positions_T, positions_T=positions_T, groups=(group,), num_tokens=TOKENS)


@pytest.fixture
def kv() -> CanonicalKV:
    return CanonicalKV(torch.zeros(2, 4, KV_HEADS, DIM), torch.zeros(2, 4, KV_HEADS, DIM))


@pytest.fixture
def no_rope() -> torch.Tensor:
    """cos 1, sin 0: positions do not matter."""
    return torch.cat((torch.ones(8, DIM // 2), torch.zeros(8, DIM // 2)), dim=-1)


def test_equals_plain_attention(
    make_parts: Make, randn: Make, tensors: Any, batch: ForwardBatch, kv: CanonicalKV, no_rope: torch.Tensor
) -> None:
    x_TH = randn(TOKENS, HIDDEN)
    out_TH = Attention(make_parts(tensors), "a", config(), no_rope)(x_TH, batch, kv)
    q, k, v = (x_TH @ tensors["a.qkv"].T).split([HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM], dim=-1)
    q, k, v = (part.unflatten(-1, (-1, DIM)).transpose(0, 1) for part in (q, k, v))
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(out_TH, plain.transpose(0, 1).flatten(-2) @ tensors["a.o"].T, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(kv.v_BSKD[1, :TOKENS], v.transpose(0, 1))
    assert not kv.k_BSKD[0].any()


def test_slots_and_plan_are_those_of_its_kv_group(
    make_parts: Make, randn: Make, tensors: Any, batch: ForwardBatch, kv: CanonicalKV, no_rope: torch.Tensor
) -> None:
    x_TH = randn(TOKENS, HIDDEN)
    expected_TH = Attention(make_parts(tensors), "a", config(), no_rope)(x_TH, batch, kv)
    layer = Attention(make_parts(tensors), "a", config(kv_group=1), no_rope)
    moved = replace(batch.groups[0].plan, block_table_RB=torch.tensor([[0]], dtype=torch.int32))
    second = GroupInputs(slots_T=batch.positions_T, plan=moved)
    assert torch.equal(layer(x_TH, replace(batch, groups=(batch.groups[0], second)), kv), expected_TH)
    assert torch.equal(kv.k_BSKD[0], kv.k_BSKD[1])


def test_q_k_v_are_views_of_the_merged_projection(
    make_parts: Make, randn: Make, tensors: Any, batch: ForwardBatch, kv: CanonicalKV, no_rope: torch.Tensor
) -> None:
    layer = Attention(make_parts(tensors), "a", config(), no_rope)
    seen: list[torch.Tensor] = []
    write = layer.attend.rope_kv_write
    layer.attend.rope_kv_write = lambda *args: (seen.extend(args[:3]), write(*args))
    layer(randn(TOKENS, HIDDEN), batch, kv)
    width = (HEADS + 2 * KV_HEADS) * DIM
    assert len({x.untyped_storage().data_ptr() for x in seen}) == 1
    assert [x.stride() for x in seen] == [(width, DIM, 1)] * 3


def test_options_reach_the_ops(make_parts: Make, bound: Any, tensors: Any, no_rope: torch.Tensor) -> None:
    options = {"window": 5, "qkv_bias": True, "o_bias": True, "qk_norm": True, "sinks": True}
    layer = Attention(make_parts(tensors), "a", config(**options), no_rope)
    specs = dict(bound)
    assert [name for name, _ in bound].count("rms_norm") == 2
    assert (specs["paged_attention"].window, specs["paged_attention"].has_sinks) == (5, True)
    assert specs["linear"].bias
    assert layer.attend.sinks_N is tensors["a.sinks"]
    bound.clear()
    assert Attention(make_parts(tensors), "a", config(), no_rope).attend.sinks_N is None
    assert "rms_norm" not in dict(bound)

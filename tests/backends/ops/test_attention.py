"""The paged reference against dense attention of torch, and against an explicit loop for the rest."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from isoinfer.backends.ops import PAGED_ATTENTION, AttentionSpec, CanonicalKV, Sample, bind_reference

SAMPLES = {sample.label: sample for sample in PAGED_ATTENTION.samples(torch.float64, 0)}


def _run(sample: Sample) -> torch.Tensor:
    bind_reference(PAGED_ATTENTION, sample.static)(*sample.args)
    return sample.args[4]


def _dense_rows(sample: Sample) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """q `[Q, N, D]`, k and v `[L, K, D]` of each row, gathered one token at a time."""
    q, kv, batch = sample.args[:3]
    rows, start = [], 0
    for r, (count, length) in enumerate(zip(batch.query_len_R.tolist(), batch.kv_len_device_R.tolist(), strict=True)):
        table, size = batch.block_table_RB[r].tolist(), batch.block_size
        k = torch.stack([kv.k_BSKD[table[p // size], p % size] for p in range(length)])
        v = torch.stack([kv.v_BSKD[table[p // size], p % size] for p in range(length)])
        rows.append((q[start : start + count], k, v))
        start += count
    return rows


def _loop(static: AttentionSpec, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, n: int, i: int, sink: float | None):
    """Query i of head n, in python numbers."""
    position, head = k.shape[0] - q.shape[0] + i, n // (static.num_heads // static.num_kv_heads)
    first = 0 if static.window is None else max(0, position - static.window + 1)
    scores = [float(q[i, n] @ k[j, head]) * static.scale for j in range(first, position + 1)]
    if static.softcap is not None:
        scores = [static.softcap * math.tanh(s / static.softcap) for s in scores]
    weights = [math.exp(s) for s in scores]
    total = sum(weights) + (math.exp(sink) if sink is not None else 0.0)
    return sum(w / total * v[first + j, head] for j, w in enumerate(weights))


@pytest.mark.parametrize("label", ["first-token", "decode-gqa", "prefill-odd", "mixed"])
def test_equals_dense_attention_of_torch(label: str) -> None:
    sample, start = SAMPLES[label], 0
    out = _run(sample)
    for q, k, v in _dense_rows(sample):
        mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        dense = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=mask, enable_gqa=True
        )
        torch.testing.assert_close(out[start : start + len(q)], dense.transpose(0, 1), rtol=1e-10, atol=1e-10)
        start += len(q)
    assert start == len(out)


@pytest.mark.parametrize("label", ["window", "window-one", "softcap", "sinks-window"])
def test_equals_an_explicit_loop(label: str) -> None:
    sample, start = SAMPLES[label], 0
    out, sinks = _run(sample), sample.args[3]
    for q, k, v in _dense_rows(sample):
        for n in range(sample.static.num_heads):
            for i in {0, len(q) // 2, len(q) - 1}:
                sink = float(sinks[n]) if sinks is not None else None
                expected = _loop(sample.static, q, k, v, n, i, sink)
                torch.testing.assert_close(out[start + i, n], expected, rtol=1e-10, atol=1e-10)
        start += len(q)


def test_samples_cover_what_the_spec_can_say() -> None:
    statics = [sample.static for sample in SAMPLES.values()]
    assert any(s.window for s in statics)
    assert any(s.softcap for s in statics)
    assert any(s.has_sinks for s in statics)
    assert any(s.num_heads > s.num_kv_heads for s in statics)
    batch = SAMPLES["mixed"].args[2]
    assert 1 in batch.query_len_R
    assert batch.query_len_R.max() > 1
    assert any(length % batch.block_size for length in batch.kv_len_device_R.tolist())
    table = batch.block_table_RB.flatten().tolist()
    assert table != sorted(table)


@pytest.mark.parametrize("label", list(SAMPLES))
def test_invisible_slots_are_poisoned_and_do_not_matter(label: str) -> None:
    sample = SAMPLES[label]
    kv = sample.args[1]
    assert kv.k_BSKD.isnan().any()
    clean = CanonicalKV(kv.k_BSKD.nan_to_num(), kv.v_BSKD.nan_to_num())
    q, _, batch, sinks, out = sample.args
    other = replace(sample, args=(q, clean, batch, sinks, torch.empty_like(out)))
    assert torch.equal(_run(sample), _run(other))


def test_block_order_does_not_matter() -> None:
    sample = SAMPLES["mixed"]
    q, kv, batch, sinks, out = sample.args
    order = torch.randperm(len(kv.k_BSKD), generator=torch.Generator().manual_seed(1))
    moved = CanonicalKV(kv.k_BSKD[order], kv.v_BSKD[order])
    table = order.argsort()[batch.block_table_RB.long()].to(torch.int32)
    other = replace(sample, args=(q, moved, replace(batch, block_table_RB=table), sinks, torch.empty_like(out)))
    assert torch.equal(_run(sample), _run(other))

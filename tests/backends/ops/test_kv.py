"""Paged writes against an explicit loop."""

from __future__ import annotations

import torch

from isoinfer.backends.ops import KV_WRITE, ROPE, ROPE_KV_WRITE, bind_reference
from isoinfer.conformance.arguments import copies


def test_kv_write_fills_the_slots_and_nothing_else() -> None:
    for sample in KV_WRITE.samples(torch.float32, 0):
        k, v, kv, slots = copies(sample.args)
        expected_k, expected_v = kv.k_BSKD.clone(), kv.v_BSKD.clone()
        for t, slot in enumerate(slots.tolist()):
            expected_k[slot // kv.block_size][slot % kv.block_size] = k[t]
            expected_v[slot // kv.block_size][slot % kv.block_size] = v[t]
        bind_reference(KV_WRITE, sample.static)(k, v, kv, slots)
        assert torch.equal(kv.k_BSKD, expected_k)
        assert torch.equal(kv.v_BSKD, expected_v)


def test_rope_kv_write_stores_the_rotated_k() -> None:
    for sample in ROPE_KV_WRITE.samples(torch.float32, 0):
        q, k, v, positions, table, kv, slots = copies(sample.args)
        bind_reference(ROPE_KV_WRITE, sample.static)(q, k, v, positions, table, kv, slots)
        plain_q, plain_k = copies(sample.args)[:2]
        bind_reference(ROPE, sample.static.rope)(plain_q, plain_k, positions, table)
        assert torch.equal(q, plain_q)
        block, offset = slots.long() // kv.block_size, slots.long() % kv.block_size
        assert torch.equal(kv.k_BSKD[block, offset], plain_k)
        assert torch.equal(kv.v_BSKD[block, offset], v)


def test_samples_write_slots_once() -> None:
    for sample in KV_WRITE.samples(torch.float32, 0):
        slots = sample.args[3].tolist()
        assert len(set(slots)) == len(slots)

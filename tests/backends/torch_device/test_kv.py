"""Paged KV in plain tensors: layout, and blocks out and in again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from isoinfer.backends.interface import KVSpec
from isoinfer.backends.torch_device.kv import PagedKVStore

SPEC = KVSpec(name="full", layers=(0, 3), num_kv_heads=2, head_dim=8, dtype="float16")
OTHER = KVSpec(name="window_9", layers=(1,), num_kv_heads=2, head_dim=8, dtype="float32", window=9)
STORE = PagedKVStore(device=torch.device("cpu"), block_size=4, num_scratch_blocks=1)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_the_layout_counts_both_sides_of_every_layer_of_a_group() -> None:
    layout = STORE.layout([SPEC, OTHER])
    assert (layout.block_size, layout.num_scratch_blocks) == (4, 1)
    assert layout.bytes_per_block == (2 * 2 * 4 * 2 * 8 * 2, 2 * 1 * 4 * 2 * 8 * 4)


def test_blocks_survive_a_round_trip_and_a_copy() -> None:
    cache = STORE.allocate([SPEC], [5])
    assert cache.layer(3).block_size == 4
    k, v = torch.randn(2, 2, 4, 2, 8).half()
    STORE.store(cache, 3, ids(4, 1), k, v)
    STORE.copy(cache, 0, ids(4), ids(0))
    out_k, out_v = STORE.export(cache, 3, ids(0, 1))
    assert torch.equal(out_k, k)
    assert torch.equal(out_v, v)
    assert not STORE.export(cache, 0, ids(0, 1, 4))[0].any(), "the other layer was touched"
    assert not STORE.export(cache, 3, ids(2, 3))[0].any(), "another block was touched"


def test_each_group_has_blocks_of_its_own_and_copies_alone() -> None:
    cache = STORE.allocate([SPEC, OTHER], [5, 2])
    assert [len(cache.layer(layer).k_BSKD) for layer in (0, 1, 3)] == [5, 2, 5]
    for layer in (0, 1, 3):
        STORE.store(cache, layer, ids(1), *torch.ones(2, 1, 4, 2, 8))
    STORE.copy(cache, 1, ids(1), ids(0))
    assert STORE.export(cache, 1, ids(0))[0].all()
    assert not any(STORE.export(cache, layer, ids(0))[0].any() for layer in (0, 3)), "another group was touched"
    STORE.copy(cache, 0, ids(1), ids(0))
    assert all(side.all() for layer in (0, 3) for side in STORE.export(cache, layer, ids(0)))


def test_rings_are_blocks_of_their_own_size() -> None:
    ring = replace(OTHER, ring=11)
    assert STORE.layout([SPEC, ring]).bytes_per_block == (2 * 2 * 4 * 2 * 8 * 2, 2 * 1 * 11 * 2 * 8 * 4)
    cache = STORE.allocate([SPEC, ring], [5, 3])
    assert (cache.layer(0).block_size, cache.layer(1).block_size) == (4, 11)
    k, v = torch.randn(2, 1, 11, 2, 8)
    STORE.store(cache, 1, ids(2), k, v)
    STORE.copy(cache, 1, ids(2), ids(0))
    assert torch.equal(STORE.export(cache, 1, ids(0))[1], v)

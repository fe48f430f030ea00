"""KV in the CPU's own shape: what goes in canonical comes out canonical, and copies stay in their blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.backends.cpu import kv as cpu_kv
from isoinfer.backends.interface import AttentionBatch, KVSpec
from isoinfer.backends.ops import KV_WRITE, KVWriteSpec


def spec(name: str, layers: tuple[int, ...], heads: int, dim: int, dtype: str = "float32") -> KVSpec:
    return KVSpec(name=name, layers=layers, num_kv_heads=heads, head_dim=dim, dtype=dtype)


def ids(*blocks: int) -> np.ndarray:
    return np.array(blocks, dtype=np.int32)


def random_kv(backend: Any, specs: list[KVSpec], num_blocks: int) -> Any:
    cache = backend.allocate_kv(specs, [num_blocks] * len(specs))
    for one in specs:
        for layer in one.layers:
            shape = (num_blocks, 16, one.num_kv_heads, one.head_dim)
            backend.import_blocks(cache, layer, ids(*range(num_blocks)), torch.randn(shape), torch.randn(shape))
    return cache


def test_layout_counts_every_layer_of_a_group_and_each_group_has_blocks_of_its_own(open_backend: Any) -> None:
    specs = [spec("a", (0, 2), 2, 64, "bfloat16"), spec("b", (1,), 1, 32)]
    layout = open_backend().kv_layout(specs)
    assert layout.block_size == 16
    assert layout.bytes_per_block == (2 * 2 * 2 * 64 * 16 * 2, 2 * 1 * 32 * 16 * 4)
    cache = open_backend().allocate_kv(specs, [3, 7])
    held = [cache.layer(i).k_BKDSp.nbytes + cache.layer(i).v_BKSD.nbytes for i in range(3)]
    assert (held[0] + held[2], held[1]) == (3 * layout.bytes_per_block[0], 7 * layout.bytes_per_block[1])
    with pytest.raises(ValueError, match="shorter"):
        open_backend().allocate_kv(specs, [3])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("heads", "dim"), [(1, 16), (3, 40), (2, 64)])
def test_export_gives_what_import_took(open_backend: Any, dtype: str, heads: int, dim: int) -> None:
    backend = open_backend()
    cache = backend.allocate_kv([spec("a", (5,), heads, dim, dtype)], [6])
    k, v = (torch.randn(3, 16, heads, dim).to(getattr(torch, dtype)) for _ in "kv")
    backend.import_blocks(cache, 5, ids(4, 0, 2), k, v)
    k_out, v_out = backend.export_blocks(cache, 5, ids(2, 4, 0))
    order = [2, 0, 1]
    assert torch.equal(k_out, k[order])
    assert torch.equal(v_out, v[order])
    backend.import_blocks(cache, 5, ids(4), k[:1] + 1, v[:1] + 1)
    assert torch.equal(k_out[1], k[0]), "an export must be a copy"


@pytest.mark.parametrize("native", ["on", "off"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_writes_land_where_export_finds_them(open_backend: Any, need_bfloat16: None, dtype: str, native: str) -> None:
    backend = open_backend(dtype=dtype, native=native)
    static = KVWriteSpec(num_kv_heads=2, head_dim=24, block_size=16, dtype=dtype)
    cache = random_kv(backend, [spec("a", (0,), 2, 24, dtype)], 4)
    k_before, v_before = (t.contiguous() for t in backend.export_blocks(cache, 0, ids(0, 1, 2, 3)))
    fused = torch.randn(5, 9, 24).to(getattr(torch, dtype))
    k_TKD, v_TKD = fused[:, 3:5], fused[:, 7:9]
    slots = [16, 31, 47, 5, 62]
    backend.bind(KV_WRITE, static)(k_TKD, v_TKD, cache.layer(0), torch.tensor(slots, dtype=torch.int32))
    k_before.view(64, 2, 24)[slots] = k_TKD
    v_before.view(64, 2, 24)[slots] = v_TKD
    k_after, v_after = backend.export_blocks(cache, 0, ids(0, 1, 2, 3))
    assert torch.equal(k_after, k_before)
    assert torch.equal(v_after, v_before)


@pytest.mark.parametrize("stream", ["inline", "thread"])
def test_copies_stay_within_their_blocks_and_their_group(open_backend: Any, stream: str) -> None:
    backend = open_backend(stream=stream)
    cache = random_kv(backend, [spec("a", (0, 1), 2, 16), spec("b", (2,), 1, 32, "bfloat16")], 5)
    everything = ids(0, 1, 2, 3, 4)
    before = [backend.export_blocks(cache, layer, everything) for layer in range(3)]
    queue, event = backend.stream(), backend.event()
    backend.copy_blocks(cache, 0, ids(3, 0), ids(1, 4), queue)
    backend.copy_blocks(cache, 1, ids(2), ids(0), queue)
    event.record(queue)
    event.synchronize()
    for layer, now in enumerate([[0, 3, 2, 3, 0], [0, 3, 2, 3, 0], [2, 1, 2, 3, 4]]):
        for old, new in zip(before[layer], backend.export_blocks(cache, layer, everything), strict=True):
            assert torch.equal(new, old[now])


def test_discarding_leaves_every_other_block_alone(open_backend: Any) -> None:
    backend = open_backend()
    cache = random_kv(backend, [spec("a", (0,), 2, 16), spec("b", (1,), 1, 32)], 3)
    kept = [(0, ids(0, 2)), (1, ids(0, 1, 2))]
    before = [backend.export_blocks(cache, layer, blocks) for layer, blocks in kept]
    backend.discard_blocks(cache, 0, ids(1))
    for (layer, blocks), old in zip(kept, before, strict=True):
        assert all(map(torch.equal, old, backend.export_blocks(cache, layer, blocks)))


def test_a_plan_has_row_offsets_and_contiguous_tables(open_backend: Any) -> None:
    batch = AttentionBatch(
        query_len_R=ids(3, 1, 4),
        kv_len_upper_R=ids(3, 9, 40),
        kv_len_device_R=torch.tensor([3, 9, 40], dtype=torch.int32),
        block_table_RB=torch.arange(12, dtype=torch.int32).view(3, 4)[:, :3],
        block_size=16,
    )
    backend = open_backend()
    plan = backend.plan_attention(batch, backend.stream())
    assert plan.num_rows == 3
    assert plan.q_start_R.tolist() == [0, 3, 4]
    assert plan.q_len_R.tolist() == [3, 1, 4]
    assert plan.kv_len_R.tolist() == [3, 9, 40]
    assert plan.table_RB.tolist() == [[0, 1, 2], [4, 5, 6], [8, 9, 10]]
    assert plan.table_RB.is_contiguous()
    assert {t.dtype for t in (plan.table_RB, plan.q_start_R, plan.q_len_R, plan.kv_len_R)} == {torch.int32}


def test_exact_host_lengths_that_are_absent_cannot_be_read() -> None:
    batch = AttentionBatch(
        query_len_R=ids(1),
        kv_len_upper_R=ids(5),
        kv_len_device_R=torch.tensor([4]),
        block_table_RB=torch.zeros(1, 1),
        block_size=16,
    )
    with pytest.raises(AssertionError, match="kv_len_device_R"):
        _ = batch.kv_len_host_R


def test_bfloat16_keys_need_an_even_head_dim() -> None:
    with pytest.raises(AssertionError):
        cpu_kv.allocate([spec("a", (0,), 1, 15, "bfloat16")], [2])


def test_rings_are_blocks_of_their_own_size(open_backend: Any) -> None:
    backend = open_backend()
    specs = [spec("full", (0,), 2, 16), replace(spec("window", (1, 2), 2, 16), window=5, ring=7)]
    layout = backend.kv_layout(specs)
    assert (layout.block_size, layout.bytes_per_block) == (16, (2 * 2 * 16 * 16 * 4, 2 * 2 * 2 * 16 * 7 * 4))
    cache = backend.allocate_kv(specs, [3, 4])
    assert [cache.layer(layer).block_size for layer in range(3)] == [16, 7, 7]
    k, v = torch.randn(2, 4, 7, 2, 16)
    backend.import_blocks(cache, 2, ids(0, 1, 2, 3), k, v)
    backend.import_blocks(cache, 1, ids(0, 1, 2, 3), torch.zeros_like(k), torch.zeros_like(v))
    stream = backend.stream()
    backend.copy_blocks(cache, 1, ids(0), ids(3), stream)
    stream.synchronize()
    k_out, v_out = backend.export_blocks(cache, 2, ids(3, 1))
    assert torch.equal(k_out, k[[0, 1]])
    assert torch.equal(v_out, v[[0, 1]])
    assert not backend.export_blocks(cache, 1, ids(3))[0].any()

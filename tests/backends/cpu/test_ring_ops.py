"""Attention over rings has the bits of attention over blocks, however the work is cut, beside whatever rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.backends.interface import AttentionBatch, KVSpec
from isoinfer.backends.ops import (
    KV_WRITE,
    PAGED_ATTENTION,
    RING_WRITE,
    WINDOW_ATTENTION,
    AttentionSpec,
    KVWriteSpec,
    RingWriteSpec,
    WindowAttentionSpec,
)
from isoinfer.backends.ops.rings import make_ring_batch

N, K, D, LENGTH, WINDOW, RING = 4, 2, 32, 131, 37, 41
SPEC = KVSpec(name="full", layers=(0,), num_kv_heads=K, head_dim=D, dtype="float32")
SHAPE = {"num_kv_heads": K, "head_dim": D, "dtype": "float32"}


@pytest.fixture(params=["on", "off"])
def backend(request: pytest.FixtureRequest, open_backend: Any) -> Any:
    return open_backend(native=request.param, deterministic=True)


@pytest.fixture(scope="module")
def qkv() -> list[torch.Tensor]:
    """Two sequences, one after the other."""
    gen = torch.Generator().manual_seed(2)
    return [torch.randn(2, LENGTH, heads, D, generator=gen) for heads in (N, K, K)]


def in_blocks(backend: Any, qkv: Sequence[torch.Tensor]) -> torch.Tensor:
    q, k, v = (x[0] for x in qkv)
    kv = backend.allocate_kv([SPEC], [12]).layer(0)
    slots_T = torch.arange(16, 16 + LENGTH, dtype=torch.int32)
    backend.bind(KV_WRITE, KVWriteSpec(**SHAPE, block_size=16))(k, v, kv, slots_T)
    lengths = np.array([LENGTH], dtype=np.int32)
    plan = backend.plan_attention(
        AttentionBatch(
            query_len_R=lengths,
            kv_len_upper_R=lengths,
            kv_len_device_R=torch.from_numpy(lengths),
            block_table_RB=torch.arange(1, 11, dtype=torch.int32)[None],
            block_size=16,
        ),
        backend.stream(),
    )
    spec = AttentionSpec(
        **SHAPE, num_heads=N, scale=D**-0.5, block_size=16, window=WINDOW, softcap=None, has_sinks=False
    )
    out = torch.full_like(q, torch.nan)
    backend.bind(PAGED_ATTENTION, spec)(q, kv, plan, None, out)
    return out


def in_rings(backend: Any, qkv: Sequence[torch.Tensor], size: int) -> torch.Tensor:
    """The first sequence in chunks of `size`, beside the second one in chunks of 7."""
    spec = WindowAttentionSpec(**SHAPE, num_heads=N, scale=D**-0.5, window=WINDOW, has_sinks=False)
    attend, write = backend.bind(WINDOW_ATTENTION, spec), backend.bind(RING_WRITE, RingWriteSpec(**SHAPE))
    kv = backend.allocate_kv([replace(SPEC, window=WINDOW, ring=RING)], [3]).layer(0)
    for part in kv.parts:
        part.fill_(torch.nan)
    outs, start, other = [], 0, 0
    while start < LENGTH:
        count, beside = min(size, LENGTH - start), min(7, LENGTH - other)
        rows = [(start, count, 0)] + ([(other, beside, 0)] if beside else [])
        plan = make_ring_batch(rows, torch.arange(len(rows), dtype=torch.int32), ring=RING, scratch=2)
        q, k, v = (torch.cat((x[0, start : start + count], x[1, other : other + beside])) for x in qkv)
        out = torch.full_like(q, torch.nan)
        attend(q, k, v, kv, plan, None, out)
        write(k, v, kv, plan)
        outs.append(out[:count])
        start, other = start + count, other + beside
    return torch.cat(outs)


@pytest.mark.parametrize("size", [1, 5, 16, WINDOW, LENGTH])
def test_the_bits_are_those_of_the_paged_form(backend: Any, qkv: list[torch.Tensor], size: int) -> None:
    assert torch.equal(in_rings(backend, qkv, size), in_blocks(backend, qkv))

"""Remap against a loop over rows in plain Python, and by hand."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from isoinfer.backends.ops import REMAP, REMAP_SLOTS, OpSpec, RemapSlotsSpec, RemapSpec, bind_reference


def int32(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def by_hand(num_drafts: int, block_size: int, tensors: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    """Tokens, positions, KV lengths and slots after both ops, one row after the other."""
    lists = {name: tensor.tolist() for name, tensor in tensors.items()}
    tokens, positions, kv_len, slots = (lists[name] for name in ("tokens", "positions", "kv_len", "slots"))
    for row, source in enumerate(lists["map"]):
        if source < 0:
            continue
        rejected = lists["rejected"][source] if num_drafts else 0
        kv_len[row] -= rejected
        values = [lists["last"][source], *lists["draft"][source]]
        start, stop = lists["query_start"][row : row + 2]
        for token, value in zip(range(start, stop), values, strict=False):
            tokens[token] = value
            positions[token] -= rejected
            slots[token] = lists["table"][row][positions[token] // block_size] * block_size
            slots[token] += positions[token] % block_size
    return {"tokens": tokens, "positions": positions, "kv_len": kv_len, "slots": slots}


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, int, dict[str, torch.Tensor]]:
    """Any batch whose rows have a token and whose mapped rows have at most K + 1."""
    num_drafts, block_size = draw(st.integers(0, 4)), draw(st.sampled_from([1, 4, 16]))
    before = draw(st.integers(1, 6))
    source = draw(st.lists(st.integers(-1, before - 1), min_size=1, max_size=7))
    lengths = [draw(st.integers(1, num_drafts + 1 if m >= 0 else 9)) for m in source]
    first = [draw(st.integers(num_drafts, 40)) for _ in source]
    gen = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    blocks = 50 // block_size + 1
    tokens = sum(lengths)
    tensors = {
        "tokens": torch.randint(0, 999, (tokens,), generator=gen),
        "positions": torch.cat([f + torch.arange(n) for f, n in zip(first, lengths, strict=True)]),
        "kv_len": torch.tensor(first) + torch.tensor(lengths),
        "query_start": torch.tensor([0, *lengths]).cumsum(0),
        "map": torch.tensor(source),
        "last": torch.randint(0, 999, (before,), generator=gen),
        "rejected": torch.randint(0, num_drafts + 1, (before if num_drafts else 0,), generator=gen),
        "draft": torch.randint(0, 999, (before, num_drafts), generator=gen),
        "slots": torch.randint(0, 999, (tokens,), generator=gen),
        "table": torch.randperm(len(source) * blocks, generator=gen).view(len(source), blocks),
    }
    return num_drafts, block_size, {name: tensor.to(torch.int32) for name, tensor in tensors.items()}


@given(batches())
@settings(max_examples=150, deadline=None)
def test_every_batch_is_as_a_loop_over_rows_gives(batch: tuple[int, int, dict[str, torch.Tensor]]) -> None:
    num_drafts, block_size, t = batch
    expected = by_hand(num_drafts, block_size, t)
    remap = bind_reference(REMAP, RemapSpec(num_drafts=num_drafts))
    slots = bind_reference(REMAP_SLOTS, RemapSlotsSpec(block_size=block_size))
    remap(t["tokens"], t["positions"], t["kv_len"], t["query_start"], t["map"], t["last"], t["rejected"], t["draft"])
    slots(t["slots"], t["positions"], t["query_start"], t["map"], t["table"])
    assert {name: t[name].tolist() for name in expected} == expected


def test_a_row_takes_its_last_token_and_its_drafts_and_steps_back_over_the_rejected() -> None:
    tokens, positions, kv_len = int32([7, 7, 7, 8, 8]), int32([20, 21, 22, 3, 4]), int32([23, 5])
    before = (int32([100, 200]), int32([0, 2]), int32([[101, 102, 103], [201, 202, 203]]))
    bind_reference(REMAP, RemapSpec(num_drafts=3))(tokens, positions, kv_len, int32([0, 3, 5]), int32([1, -1]), *before)
    assert tokens.tolist() == [200, 201, 202, 8, 8]
    assert positions.tolist() == [18, 19, 20, 3, 4]
    assert kv_len.tolist() == [21, 5]
    slots = int32([0, 0, 0, 9, 9])
    table = int32([[5, 6], [1, 1]])
    bind_reference(REMAP_SLOTS, RemapSlotsSpec(block_size=19))(
        slots, positions, int32([0, 3, 5]), int32([1, -1]), table
    )
    assert slots.tolist() == [5 * 19 + 18, 6 * 19, 6 * 19 + 1, 9, 9]


def test_samples_have_every_pattern() -> None:
    """Else a kernel that ignores one of them would pass."""
    for op, at in ((REMAP, 4), (REMAP_SLOTS, 3)):
        maps = [sample.args[at].tolist() for sample in op.samples(torch.float32, 0)]
        assert any(set(m) == {-1} for m in maps)
        assert any(len(m) > 2 and m == list(range(len(m))) for m in maps)
        assert any(-1 not in m and m != sorted(m) for m in maps)
        assert any(len(m) == 1 for m in maps)
        assert any(len(m) > 100 for m in maps)
    drafts = [sample for sample in REMAP.samples(torch.float32, 0) if sample.static.num_drafts == 3]
    counts = {
        count
        for sample in drafts
        for count, source in zip(sample.args[3].diff().tolist(), sample.args[4].tolist(), strict=True)
        if source >= 0
    }
    assert counts == {1, 2, 3, 4}


def test_nothing_waits_for_the_device() -> None:
    """Fake tensors have no values: reading one on the host raises."""
    ops: tuple[OpSpec, ...] = (REMAP, REMAP_SLOTS)
    for op in ops:
        for sample in op.samples(torch.float32, 0):
            with FakeTensorMode() as mode:
                args = [mode.from_tensor(arg) for arg in sample.args]
                bind_reference(op, sample.static)(*args)

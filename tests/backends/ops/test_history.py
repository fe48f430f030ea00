"""Appending to the token history against slices of lists."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.backends.ops import APPEND_HISTORY, HistorySpec, OpSpec, bind_reference

J, L = 3, 6


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, L + 2), st.integers(0, J)), min_size=1, max_size=5), seed=st.integers(0, 9)
)
def test_it_is_the_loop_over_rows(rows: list[tuple[int, int]], seed: int) -> None:
    gen = torch.Generator().manual_seed(seed)
    slots = torch.randperm(6, generator=gen, dtype=torch.int32)[: len(rows)]
    history = torch.randint(0, 99, (6, L), generator=gen, dtype=torch.int32)
    tokens = torch.randint(0, 99, (len(rows), J), generator=gen, dtype=torch.int32)
    expected = history.tolist()
    for slot, row, (length, count) in zip(slots.tolist(), tokens.tolist(), rows, strict=True):
        for position, token in enumerate(row[:count], start=length):
            if position < L:
                expected[slot][position] = token
    length_G, count_G = (torch.tensor(column, dtype=torch.int32) for column in zip(*rows, strict=True))
    bind_reference(APPEND_HISTORY, HistorySpec(num_tokens=J))(history, slots, length_G, tokens, count_G)
    assert history.tolist() == expected


def test_rows_that_append_nothing_may_share_a_slot() -> None:
    history = torch.zeros((2, 4), dtype=torch.int32)
    slot, length, count = (torch.tensor(column, dtype=torch.int32) for column in ([1, 1, 1], [0, 1, 3], [0, 2, 0]))
    tokens = torch.arange(1, 10, dtype=torch.int32).view(3, 3)
    bind_reference(APPEND_HISTORY, HistorySpec(num_tokens=3))(history, slot, length, tokens, count)
    assert history.tolist() == [[0, 0, 0, 0], [0, 4, 5, 0]]


def test_it_never_waits_for_the_device(assert_needs_no_values: Callable[[OpSpec], None]) -> None:
    assert_needs_no_values(APPEND_HISTORY)

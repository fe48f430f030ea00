"""Prompt lookup against a search by slices of lists, and by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.backends.ops import PROPOSE_NGRAM, NgramSpec, OpSpec, bind_reference


def by_hand(context: list[int], static: NgramSpec) -> list[int]:
    """The drafts for one context."""
    for size in range(static.max_ngram, static.min_ngram - 1, -1):
        for end in range(len(context) - 1, size - 1, -1):
            if context[end - size : end] == context[len(context) - size :]:
                return context[end : end + static.num_drafts]
    return []


@settings(max_examples=300, deadline=None)
@given(
    contexts=st.lists(st.lists(st.integers(0, 2), max_size=14), min_size=1, max_size=5),
    num_drafts=st.integers(1, 5),
    low=st.integers(1, 3),
    more=st.integers(0, 12),
    seed=st.integers(0, 9),
)
def test_it_is_the_search_by_slices(contexts: list[list[int]], num_drafts: int, low: int, more: int, seed: int) -> None:
    static = NgramSpec(num_drafts=num_drafts, min_ngram=low, max_ngram=low + more)
    gen = torch.Generator().manual_seed(seed)
    history = torch.randint(0, 3, (7, 14), generator=gen, dtype=torch.int32)  # what is past a length must not matter
    slots = torch.randperm(7, generator=gen, dtype=torch.int32)[: len(contexts)]
    for slot, context in zip(slots.tolist(), contexts, strict=True):
        history[slot, : len(context)] = torch.tensor(context, dtype=torch.int32)
    lengths = torch.tensor([len(context) for context in contexts], dtype=torch.int32)
    drafts, found = bind_reference(PROPOSE_NGRAM, static)(history, slots, lengths)
    expected = [by_hand(context, static) for context in contexts]
    assert found.tolist() == [len(row) for row in expected]
    assert drafts.tolist() == [row + [0] * (num_drafts - len(row)) for row in expected]
    assert drafts.dtype == found.dtype == torch.int32


def test_the_longest_wins_then_the_latest() -> None:
    (sample,) = (sample for sample in PROPOSE_NGRAM.samples(torch.float32, 0) if sample.label == "by-hand")
    drafts, found = PROPOSE_NGRAM.reference(sample.static, *sample.args)
    assert drafts.tolist() == [[7, 9, 2], [2, 5, 6], [4, 0, 0], [2, 1, 0], [0, 0, 0]]
    assert found.tolist() == [3, 3, 1, 2, 0]


def test_a_length_beyond_the_history_counts_as_its_end() -> None:
    history = torch.tensor([[1, 2, 3, 1, 2]], dtype=torch.int32)
    propose = bind_reference(PROPOSE_NGRAM, NgramSpec(num_drafts=4, min_ngram=2, max_ngram=3))
    slot = torch.zeros(1, dtype=torch.int32)
    for length in (5, 6, 1000):
        drafts, found = propose(history, slot, torch.tensor([length], dtype=torch.int32))
        assert (drafts.tolist(), found.tolist()) == ([[3, 1, 2, 0]], [3])


def test_it_never_waits_for_the_device(assert_needs_no_values: Callable[[OpSpec], None]) -> None:
    assert_needs_no_values(PROPOSE_NGRAM)

"""What is left of a prediction against slices of lists."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.backends.ops import CONSUME_DRAFTS, ConsumeSpec, OpSpec, bind_reference

K = 3
TOKENS = st.lists(st.integers(0, 1), min_size=2 * K + 1, max_size=2 * K + 1)


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(st.tuples(TOKENS, st.integers(0, 2 * K + 1), TOKENS, st.integers(0, K)), min_size=1, max_size=5),
    width=st.integers(1, 2 * K + 1),
)
def test_it_is_the_loop_over_rows(rows: list[tuple[list[int], int, list[int], int]], width: int) -> None:
    predicted, counts, tokens, accepted = (list(column) for column in zip(*rows, strict=True))
    counts = [min(count, width) for count in counts]
    expected = []
    own = [7, 8]
    for row, count, emitted, ok in zip(predicted, counts, tokens, accepted, strict=True):
        known = row[:count]
        holds = known[: ok + 1] == emitted[: ok + 1]
        expected.append((known[ok + 1 : ok + 1 + K] if holds else []) or own)
    drafts, found = bind_reference(CONSUME_DRAFTS, ConsumeSpec(num_drafts=K))(
        torch.tensor(predicted, dtype=torch.int32)[:, :width],
        torch.tensor(counts, dtype=torch.int32),
        torch.tensor(tokens, dtype=torch.int32)[:, : K + 1],
        torch.tensor(accepted, dtype=torch.int32),
        torch.tensor([[*own, 0]], dtype=torch.int32).repeat(len(rows), 1),
        torch.full((len(rows),), len(own), dtype=torch.int32),
    )
    assert found.tolist() == [len(row) for row in expected]
    assert drafts.tolist() == [row + [0] * (K - len(row)) for row in expected]
    assert drafts.dtype == found.dtype == torch.int32


def test_the_samples_hold_rows_that_go_on_and_rows_that_do_not() -> None:
    for sample in CONSUME_DRAFTS.samples(torch.float32, 0):
        drafts, found = CONSUME_DRAFTS.reference(sample.static, *sample.args)
        own_GK, own_found_G = sample.args[-2:]
        own_G = (drafts == own_GK).all(1) & (found == own_found_G)
        assert sample.label == "one" or 0 < int(own_G.sum()) < len(own_G), sample.label


def test_it_never_waits_for_the_device(assert_needs_no_values: Callable[[OpSpec], None]) -> None:
    assert_needs_no_values(CONSUME_DRAFTS)

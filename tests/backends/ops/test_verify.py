"""Coupled acceptance against a loop over rows in plain Python, and what it means for the tokens that come out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.backends.ops import VERIFY, OpSpec, VerifySpec, bind_reference


def int32(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, list[int], list[int], list[int], list[int]]:
    """K and any batch of rows; of two tokens, so that equal ones are everywhere."""
    num_drafts = draw(st.integers(0, 4))
    token, inputs, rows, start = [], [], [], [0]
    for _ in range(draw(st.integers(1, 6))):
        count = draw(st.integers(1, num_drafts + 1))
        inputs += draw(st.lists(st.integers(0, 1), max_size=3))
        rows += range(len(inputs), len(inputs) + count)
        inputs += draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
        token += draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
        start.append(len(token))
    return num_drafts, token, inputs, rows, start


def by_hand(num_drafts: int, token: list[int], inputs: list[int], rows: list[int], start: list[int]) -> list[Any]:
    """What each of the four outputs is."""
    emitted, accepted, rejected, last = [], [], [], []
    for first, end in pairwise(start):
        place = first
        while place < end - 1 and inputs[rows[place] + 1] == token[place]:
            place += 1
        tokens = token[first : place + 1]
        emitted.append(tokens + [0] * (num_drafts + 1 - len(tokens)))
        accepted.append(place - first)
        rejected.append(end - 1 - place)
        last.append(token[place])
    return [emitted, accepted, rejected, last]


@settings(max_examples=300, deadline=None)
@given(batch=batches())
def test_it_is_the_loop_over_rows(batch: Any) -> None:
    num_drafts, *columns = batch
    results = bind_reference(VERIFY, VerifySpec(num_drafts=num_drafts))(*map(int32, columns))
    assert [result.tolist() for result in results] == by_hand(num_drafts, *columns)
    assert {result.dtype for result in results} == {torch.int32}


def test_the_samples_hold_every_pattern_of_acceptance() -> None:
    seen = set()
    for sample in VERIFY.samples(torch.float32, 0):
        _, accepted, rejected, _ = VERIFY.reference(sample.static, *sample.args)
        seen |= set(zip(accepted.tolist(), rejected.tolist(), strict=True))
    assert seen >= {(accepted, drafts - accepted) for drafts in range(4) for accepted in range(drafts + 1)}


def test_whatever_is_drafted_the_tokens_are_those_of_the_target() -> None:
    """A target that samples from its context alone, and drafts that are right, wrong or random."""
    gen = torch.Generator().manual_seed(0)
    verify = bind_reference(VERIFY, VerifySpec(num_drafts=3))

    def target(context: list[int]) -> int:
        return (sum((i + 1) * t for i, t in enumerate(context)) + len(context)) % 3

    for _ in range(50):
        context = [1]
        while len(context) < 40:
            drafts: list[int] = torch.randint(
                0, 3, (int(torch.randint(0, 4, (1,), generator=gen)),), generator=gen
            ).tolist()
            step = [context[-1], *drafts]
            sampled = [target([*context, *drafts[:j]]) for j in range(len(step))]
            columns = (sampled, step, [*range(len(step))], [0, len(step)])
            tokens, accepted, _, last = verify(*map(int32, columns))
            context += tokens[0, : int(accepted[0]) + 1].tolist()
            assert context[-1] == int(last[0])
        expected = [1]
        while len(expected) < len(context):
            expected.append(target(expected))
        assert context == expected


def test_it_never_waits_for_the_device(assert_needs_no_values: Callable[[OpSpec], None]) -> None:
    assert_needs_no_values(VERIFY)

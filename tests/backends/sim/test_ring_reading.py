"""Rings say what paged windows say, however the work is cut; floors hide, and stale rings are errors."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.errors import StepError

WINDOW, RING = 5, 8
TOKENS = tuple(int(token) for token in np.random.default_rng(0).integers(0, 97, 60))


def paged(row, start, end, **changes):
    return row(tokens=TOKENS[start:end], start=start, tables=(tuple(range(1, 16)),) * 2, **changes)


def ringed(row, start, end, ring=3, **changes):
    return row(tokens=TOKENS[start:end], start=start, tables=(tuple(range(1, 16)), (ring,)), **changes)


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(1, 59), max_size=9, unique=True))
def test_any_chunks_through_rings_say_what_one_through_blocks_says(make_driver, row, cuts):
    want = make_driver(None, WINDOW).hidden(paged(row, 0, 60))
    driver = make_driver(None, (WINDOW, RING))
    got = [driver.hidden(ringed(row, start, end)) for start, end in pairwise([0, *sorted(cuts), 60])]
    assert [int(h) for part in got for h in part] == [int(h) for h in want]


def test_rows_of_one_step_keep_to_their_rings(make_driver, row):
    want = make_driver(None, WINDOW).answers(paged(row, 0, 31))
    driver = make_driver(None, (WINDOW, RING))
    other = row(tokens=TOKENS[20:50], start=0, tables=(tuple(range(16, 31)), (9,)))
    driver.hidden(other, ringed(row, 0, 30))
    assert driver.answers(ringed(row, 30, 31)) == want
    assert driver.answers(ringed(row, 30, 31, ring=9)) != want


def test_rejected_drafts_within_the_margin_leave_no_trace(make_driver, row):
    for drafts, survives in ((RING - WINDOW, True), (RING - WINDOW + 2, False)):
        driver = make_driver(None, (WINDOW, RING))
        driver.hidden(ringed(row, 0, 30))
        wrong = ringed(row, 30, 31 + drafts).but(tokens=(TOKENS[30], *[1] * drafts))
        driver.hidden(wrong)
        want = make_driver(None, WINDOW).answers(paged(row, 0, 32))
        assert (driver.answers(ringed(row, 31, 32)) == want) is survives, drafts


def test_a_floor_hides_what_is_below_and_for_as_long_as_the_window_reaches_it(make_driver, row):
    cold = make_driver(None, (WINDOW, RING))
    cold.hidden(ringed(row, 0, 20))
    warm = make_driver(None, (WINDOW, RING))
    warm.hidden(ringed(row, 0, 20))
    warm.backend.discard_blocks(warm.kv, 1, np.array([3], dtype=np.int32))
    same = []
    for position in range(20, 28):
        answers = [
            driver.hidden(ringed(row, position, position + 1, floor=floor)) for driver, floor in ((cold, 0), (warm, 20))
        ]
        same.append(int(answers[0]) == int(answers[1]))
    assert same == [False] * (WINDOW - 1) + [True] * 4


def test_a_ring_that_nobody_filled_or_that_was_discarded_is_an_error(make_driver, row):
    driver = make_driver(None, (WINDOW, RING))
    driver.hidden(ringed(row, 0, 20))
    with pytest.raises(StepError, match="of ring 4 is read and was never written"):
        driver.hidden(ringed(row, 20, 21, ring=4))
    driver.backend.discard_blocks(driver.kv, 1, np.array([3], dtype=np.int32))
    with pytest.raises(StepError, match="of ring 3 is read and was discarded"):
        driver.hidden(ringed(row, 20, 21))


def test_a_floor_past_the_first_new_token_is_an_error(make_driver, row):
    driver = make_driver(None, (WINDOW, RING))
    with pytest.raises(StepError, match="row 0: floor 3 lies behind its first new position 0"):
        driver.hidden(ringed(row, 0, 20, floor=3))


def test_rings_have_bytes_of_their_own_size(make_driver):
    driver = make_driver(None, (WINDOW, RING))
    assert driver.backend.capabilities.rings
    assert driver.backend.kv_layout(driver.spec.kv_specs).bytes_per_block == (4 * 64, RING * 64)
    assert driver.kv.layer(1).block_size == RING

"""Counts by slot: what a step adds when it is submitted, and what comes true when it settles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isoinfer.engine.request import NO_SLOT
from isoinfer.engine.slot_table import NOBODY, SlotTable


def ints(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


@pytest.fixture
def table(fake: SimpleNamespace) -> SlotTable:
    """Three slots: r0 (3 prompt tokens, up to 5) in slot 2, r1 (4 tokens, up to 8, 2 of them cached) in slot 0."""
    made = SlotTable(num_slots=3, width=65, num_drafts=2)
    made.enter(2, fake.make_request(0, [1, 2, 3], max_tokens=2), 0)
    made.enter(0, fake.make_request(1, [4, 5, 6, 7]), 2)
    return made


def test_a_newcomer_has_known_tokens_and_needs_what_is_not_cached(table: SlotTable) -> None:
    assert table.need(ints(2, 0)).tolist() == [3, 2]
    assert table.number_S.tolist() == [1, NOBODY, 0]
    assert table.limit_S[ints(2, 0)].tolist() == [5, 8]
    assert table.tokens(0)[:4].tolist() == [4, 5, 6, 7]
    table.check()


def test_a_step_in_flight_counts_as_scheduled_and_its_token_as_one_to_come(table: SlotTable) -> None:
    table.submit(ints(2, 0), ints(3, 1), ints(1, 0), step_id=7)
    assert table.need(ints(2, 0)).tolist() == [1, 1], "r0 could compute the token that is in flight"
    assert table.confirmed_S.tolist() == [2, 0, 0]
    assert table.scheduled_S.tolist() == [3, 0, 3]
    assert table.inflight_S.tolist() == [1, 0, 3]
    assert (table.row_S[2], table.row_S[0], table.last_step_S.tolist()) == (0, 1, [7, 0, 7])
    table.check()


def test_a_settled_step_is_confirmed_and_its_token_known(table: SlotTable) -> None:
    table.submit(ints(2), ints(3), ints(1), step_id=1)
    table.inflight_S[2] -= 3
    table.settle(ints(2), ints(3), ints(1), ints(0))
    table.append(ints(2), np.array([[9]], np.int32), ints(1))
    assert (table.confirmed_S[2], table.scheduled_S[2], table.known_S[2], table.outputs_S[2]) == (3, 3, 4, 0)
    assert table.need(ints(2)).tolist() == [1]
    assert table.tokens(2)[:4].tolist() == [1, 2, 3, 9]
    table.check()


def test_rejected_drafts_are_scheduled_no_more(table: SlotTable) -> None:
    table.submit(ints(0), ints(4), ints(3), step_id=1)  # the prompt's last two tokens and two drafts
    assert (table.outputs_S[0], table.rounds_S[0]) == (3, 1)
    table.inflight_S[0] -= 4
    table.settle(ints(0), ints(4), ints(3), ints(1))
    table.append(ints(0), np.array([[8, 9, 0]], np.int32), ints(2))
    assert (table.confirmed_S[0], table.scheduled_S[0], table.known_S[0]) == (5, 5, 6)
    assert (table.outputs_S[0], table.rounds_S[0]) == (0, 0)
    table.check()


def test_each_row_appends_as_many_tokens_as_it_has(table: SlotTable) -> None:
    table.append(ints(0, 2), np.array([[8, 0, 0], [1, 2, 3]], np.int32), ints(1, 2))
    assert table.known_S[ints(0, 2)].tolist() == [5, 5]
    assert table.tokens(0)[:5].tolist() == [4, 5, 6, 7, 8]
    assert table.tokens(2)[:5].tolist() == [1, 2, 3, 1, 2]


def test_a_request_goes_on_unless_what_is_in_flight_must_complete_it(table: SlotTable) -> None:
    assert table.may_go_on(ints(2)).tolist() == [True]
    table.submit(ints(2), ints(3), ints(1), step_id=1)
    assert table.may_go_on(ints(2)).tolist() == [True], "one of its two tokens is in flight"
    table.submit(ints(2), ints(1), ints(1), step_id=2)
    assert table.may_go_on(ints(2)).tolist() == [False]


def test_drafts_in_flight_complete_nothing_for_sure(table: SlotTable) -> None:
    table.submit(ints(2), ints(5), ints(3), step_id=1)
    assert table.may_go_on(ints(2)).tolist() == [True], "all of them may be rejected"


def test_a_row_is_current_while_its_request_and_epoch_hold_the_slot(table: SlotTable) -> None:
    rows = (ints(2, 0, 1), np.array([0, 1, 5]), ints(0, 1, 0))
    assert table.is_current(*rows).tolist() == [True, False, False], "restarted, and empty"
    table.leave(2)
    assert table.is_current(*rows).tolist() == [False] * 3


def test_whoever_leaves_keeps_its_tokens(table: SlotTable) -> None:
    request = table.requests[2]
    assert request is not None
    table.append(ints(2), np.array([[9]], np.int32), ints(1))
    table.leave(2)
    table.tokens_SL[2] = 0
    assert request.known_L.tolist() == [1, 2, 3, 9]
    assert (request.slot, table.number_S[2], table.requests[2]) == (NO_SLOT, NOBODY, None)


def test_a_slot_in_flight_takes_nobody(table: SlotTable, fake: SimpleNamespace) -> None:
    table.submit(ints(2), ints(3), ints(1), step_id=1)
    table.leave(2)
    with pytest.raises(AssertionError, match="slot 2 is still in flight"):
        table.enter(2, fake.make_request(5), 0)


def test_a_newcomer_inherits_nothing(table: SlotTable, fake: SimpleNamespace) -> None:
    table.submit(ints(2), ints(5), ints(3), step_id=1)
    table.inflight_S[2] = 0
    table.drafts_SK[2], table.num_drafts_S[2] = 9, 2
    table.leave(2)
    table.enter(2, fake.make_request(5, [7], num_prompt_logprobs=3), 0)
    columns = (table.outputs_S, table.rounds_S, table.num_drafts_S, table.scheduled_S, table.confirmed_S)
    assert [int(column_S[2]) for column_S in columns] == [0] * 5
    assert (table.known_S[2], table.num_prompt_logprobs_S[2]) == (1, 3)


def test_drafts_of_a_row_are_used_up_by_its_next_step(table: SlotTable) -> None:
    table.num_drafts_S[2] = 2
    table.submit(ints(2), ints(3), ints(1), step_id=1)
    assert table.num_drafts_S[2] == 0


def test_steps_that_were_given_up_are_as_if_they_had_never_been(table: SlotTable) -> None:
    table.submit(ints(2, 0), ints(3, 2), ints(1, 1), step_id=1)
    table.submit(ints(2, 0), ints(3, 1), ints(3, 1), step_id=2)
    table.rewind()
    assert table.need(ints(2, 0)).tolist() == [3, 2]
    assert not table.inflight_S.any()
    table.check()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("confirmed_S", 9, "more is confirmed than committed"),
        ("known_S", 6, "a request is too long"),
        ("inflight_S", -1, "tokens in flight are negative"),
        ("scheduled_S", 9, "a token is scheduled that nobody gives"),
        ("scheduled_S", 1, "scheduled without a step"),
        ("rounds_S", 1, "more sampling rounds than tokens"),
    ],
)
def test_check_finds_counts_that_cannot_be(table: SlotTable, column: str, value: int, message: str) -> None:
    table.check()
    getattr(table, column)[2] = value
    with pytest.raises(AssertionError, match=message):
        table.check()


def test_what_is_computed_again_is_scheduled_again_but_its_blocks_are_final(fake: SimpleNamespace) -> None:
    table = SlotTable(num_slots=1, width=65, num_drafts=0)
    table.enter(0, fake.make_request(0, list(range(9))), 8, 3)
    assert (table.confirmed_S[0], table.scheduled_S[0], table.need(ints(0))[0]) == (5, 5, 4)
    assert (table.floor_S[0], table.write_floor_S[0]) == (5, 8)
    table.leave(0)
    table.enter(0, fake.make_request(1, [1, 2]), 0)
    assert (table.floor_S[0], table.write_floor_S[0]) == (0, 0)
    table.check()

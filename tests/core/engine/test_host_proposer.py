"""What the host predicts of running requests: it follows what each has said, and is long enough for the depth."""

from __future__ import annotations

import pytest

from isoinfer.engine.host_proposer import HostProposer, prediction_width
from isoinfer.engine.slot_table import SlotTable
from isoinfer.speculation.config import SpeculativeConfig

PERIOD = [5, 6, 7, 8]


def make(depth: int, **options: int) -> tuple[HostProposer, SlotTable]:
    config = SpeculativeConfig(method="suffix", num_drafts=3, min_match=2, max_match=8, **options)
    table = SlotTable(num_slots=4, width=64, num_drafts=prediction_width(config))
    return HostProposer(config, table, depth), table


def predicted(table: SlotTable, slot: int) -> list[int]:
    return table.drafts_SK[slot, : table.num_drafts_S[slot]].tolist()


def test_the_width_covers_a_round_in_flight_only_where_the_host_predicts() -> None:
    on_host = SpeculativeConfig(method="suffix", num_drafts=3, min_match=1, max_match=4)
    on_device = SpeculativeConfig(method="ngram", num_drafts=3, min_match=1, max_match=4)
    assert (prediction_width(on_host), prediction_width(on_device)) == (7, 3)


@pytest.mark.parametrize(("depth", "expected"), [(1, [6, 7, 8]), (2, [6, 7, 8, 5, 6, 7, 8])])
def test_a_prediction_reaches_past_the_round_in_flight(depth: int, expected: list[int]) -> None:
    proposer, table = make(depth)
    proposer.enter(2, PERIOD * 2)
    proposer.append(2, [5])
    assert predicted(table, 2) == expected
    assert table.num_drafts_S[[0, 1, 3]].tolist() == [0, 0, 0], "of other slots nothing is said"


def test_what_never_occurred_gives_no_drafts() -> None:
    proposer, table = make(1)
    proposer.enter(0, PERIOD * 2)
    proposer.append(0, [5])
    assert predicted(table, 0)
    proposer.append(0, [60, 61])
    assert predicted(table, 0) == []


def test_a_short_match_gives_few_drafts_where_that_is_asked_for() -> None:
    proposer, table = make(1, drafts_per_token=1)
    proposer.enter(0, [1, 2, 3, 4, 5, 6])
    proposer.append(0, [1, 2])
    assert predicted(table, 0) == [3, 4], "a match of two tokens"


def test_a_slot_forgets_who_left() -> None:
    proposer, table = make(1)
    proposer.enter(1, PERIOD * 3)
    proposer.leave(1)
    proposer.enter(1, [20, 21, 22])
    proposer.append(1, [5, 6])
    assert predicted(table, 1) == []

"""Rows as a plan: tokens, starts, lengths that only the device knows, and which rows sample."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest


def begin(core: Any) -> Any:
    """Submit a step, settle the one before, sample, and leave it in flight: what Engine.step does at depth 2."""
    core.step()
    return core.runner.plans[-1]


def test_a_mixed_step_has_known_tokens_drafts_and_a_chunk(fake: SimpleNamespace) -> None:
    core = fake.make_core(num_drafts=2, max_num_batched_tokens=16)
    core.add("plain", [1, 2, 3], max_tokens=9)
    core.add("drafted", [4, 5], max_tokens=9)
    core.step()
    table, slots = core.scheduler.table, [core.scheduler.residents.by_id[n].slot for n in ("plain", "drafted")]
    table.num_drafts_S[slots] = [0, 2]
    table.drafts_SK[slots[1]] = [58, 59]
    core.add("chunk", list(range(30, 50)), max_tokens=9)
    plan = core.scheduler.schedule()
    last = [int(table.tokens(slot)[table.known_S[slot] - 1]) for slot in slots]
    assert plan.token_ids_T.tolist() == [last[0], last[1], 58, 59, *range(30, 42)]
    assert plan.query_len_R.tolist() == [1, 3, 12]
    assert plan.num_drafts_R.tolist() == [0, 2, 0]
    assert plan.start_R.tolist() == [3, 2, 0]
    assert plan.samples_R.tolist() == [True, True, False]
    assert plan.remap_R.tolist() == [-1, -1, -1]
    assert plan.uncertain_R.tolist() == [0, 0, 0]
    assert plan.predicted_RX.shape == (3, 0)


def test_the_last_chunk_of_a_prompt_samples(fake: SimpleNamespace) -> None:
    core = fake.make_core(max_num_batched_tokens=4)
    core.add("a", [1, 2, 3, 4, 5, 6], max_tokens=2)
    samples = [begin(core).samples_R.tolist() for _ in range(3)]
    assert samples == [[False], [True], [True]]


def test_a_row_in_flight_goes_on_from_its_row_in_the_step_before(fake: SimpleNamespace) -> None:
    core = fake.make_core(depth=2)
    core.add("short", [1], max_tokens=1)
    core.add("long", [2, 3], max_tokens=9)
    first, second, third = begin(core), begin(core), begin(core)
    assert first.remap_R.tolist() == [-1, -1]
    assert second.request_R.tolist() == [1], "the other one is complete with what is in flight"
    assert (second.remap_R.tolist(), second.start_R.tolist(), second.token_ids_T.tolist()) == ([1], [2], [0])
    assert (third.remap_R.tolist(), third.start_R.tolist(), third.token_ids_T.tolist()) == ([0], [3], [0])
    assert second.knows_lengths
    assert second.is_remapped


def test_a_prompt_in_flight_goes_on_with_its_own_tokens(fake: SimpleNamespace) -> None:
    core = fake.make_core(depth=2, max_num_batched_tokens=4)
    core.add("a", [1, 2, 3, 4, 5, 6], max_tokens=3)
    begin(core)
    second, third = begin(core), begin(core)
    assert (second.remap_R.tolist(), second.token_ids_T.tolist()) == ([-1], [5, 6])
    assert (third.remap_R.tolist(), third.token_ids_T.tolist()) == ([0], [0])


def test_unsettled_drafts_make_lengths_uncertain(fake: SimpleNamespace) -> None:
    core = fake.make_core(depth=2, num_drafts=3)
    core.add("a", [1, 2], max_tokens=30)
    core.add("b", [3, 4, 5], max_tokens=30)
    first, second, third = begin(core), begin(core), begin(core)
    assert (first.num_drafts_R.tolist(), first.uncertain_R.tolist()) == ([0, 0], [0, 0])
    assert (second.num_drafts_R.tolist(), second.uncertain_R.tolist()) == ([3, 3], [0, 0])
    assert second.token_ids_T.tolist() == [0] * 8, "all of them are on the device, the drafts too"
    assert (third.remap_R.tolist(), third.uncertain_R.tolist()) == ([0, 1], [3, 3])
    assert third.start_R.tolist() == [2 + 4, 3 + 4], "an upper bound: as if all drafts were accepted"


def test_block_tables_reach_as_far_as_the_longest_the_row_may_be(fake: SimpleNamespace) -> None:
    core = fake.make_core(depth=2, num_drafts=3, block_size=4, windows=(None, 6))
    core.add("a", [1, 2, 3, 4], max_tokens=30)
    for _ in range(6):
        plan = begin(core)
        assert len(plan.block_tables) == 2
        last_R = (plan.start_R + plan.query_len_R - 1) // 4
        for table_RB in plan.block_tables:
            assert (table_RB[np.arange(plan.num_rows), last_R] > 0).all()


def test_numbers_count_up_and_name_requests_not_slots(fake: SimpleNamespace) -> None:
    core = fake.make_core(max_num_seqs=1)
    for name in ("a", "b"):
        core.add(name, [1], max_tokens=1)
    core.run()
    plans = core.runner.plans
    assert [plan.step_id for plan in plans] == [1, 2]
    assert [plan.request_R.tolist() for plan in plans] == [[0], [1]]
    assert [plan.slot_R.tolist() for plan in plans] == [[0], [0]]


def test_a_token_of_an_older_step_cannot_be_gone_on_from(fake: SimpleNamespace) -> None:
    core = fake.make_core(depth=2)
    core.add("a", [1, 2], max_tokens=9)
    begin(core)
    core.scheduler.table.last_step_S[0] -= 1
    with pytest.raises(AssertionError, match="a token of an older step is lost"):
        core.scheduler.schedule()


def test_a_submitted_step_is_in_flight(fake: SimpleNamespace) -> None:
    core = fake.make_core(num_drafts=1)
    core.add("a", [1, 2], max_tokens=9)
    plan = core.scheduler.schedule()
    table = core.scheduler.table
    assert (table.inflight_S[0], table.scheduled_S[0], table.outputs_S[0], table.rounds_S[0]) == (2, 2, 1, 1)
    assert core.scheduler.total_inflight_tokens == plan.num_tokens == 2

"""Which running requests are in a step and with how many tokens, seen on a scheduler whose requests run already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isoinfer.engine.messages import AbortRequest, CoreSampling
from isoinfer.engine.row_choice import StepRows


def ints(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


def fill(core: Any, budget: int, phase: Any = "mixed", **options: int) -> StepRows:
    """The rows of a step that is never submitted."""
    rows = StepRows(budget)
    core.scheduler._rows.fill(rows, phase, **options)
    return rows


def running(fake: SimpleNamespace, count: int, *, prompt: Sequence[int] = (1, 2), **settings: Any) -> Any:
    """A core with `count` requests that decode: r0, r1, ... in slots 0, 1, ..."""
    core = fake.make_core(**settings)
    for index in range(count):
        core.add(f"r{index}", [index, *prompt], max_tokens=20)
    core.step()
    core.step()
    assert core.scheduler.residents.running.slots().tolist() == list(range(count))
    return core


def test_the_budget_shrinks_with_every_row() -> None:
    rows = StepRows(10)
    rows.add(ints(3, 1), ints(4, 1), ints(2, 0))
    rows.add(ints(), ints(), ints())
    assert (rows.budget, rows.slots, rows.counts, rows.drafts) == (5, [3, 1], [4, 1], [2, 0])


def test_nobody_runs_no_rows(fake: SimpleNamespace) -> None:
    rows = fill(fake.make_core(), 8)
    assert (rows.slots, rows.budget, rows.has_decodes) == ([], 8, False)


def test_decodes_come_first_and_prompts_share_what_is_left(fake: SimpleNamespace) -> None:
    core = running(fake, 2, max_num_batched_tokens=6)
    core.add("long", list(range(20)), max_tokens=2)
    core.add("more", list(range(20, 40)), max_tokens=2)
    core.step()
    rows = fill(core, 6)
    assert (rows.slots, rows.counts, rows.budget) == ([0, 1, 2], [1, 1, 4], 0)
    assert rows.has_decodes


def test_a_phase_leaves_the_other_kind_out(fake: SimpleNamespace) -> None:
    core = running(fake, 2, max_num_batched_tokens=6)
    core.add("long", list(range(20)), max_tokens=2)
    core.step()
    decode, prefill = fill(core, 6, "decode"), fill(core, 6, "prefill")
    assert (decode.slots, decode.has_decodes) == ([0, 1], True)
    assert (prefill.slots, prefill.counts, prefill.has_decodes) == ([2], [6], False)


def test_a_slot_that_sits_out_has_no_row(fake: SimpleNamespace) -> None:
    assert fill(running(fake, 3), 8, sits_out=1).slots == [0, 2]


def test_decodes_take_turns_when_the_budget_is_too_small_for_all(fake: SimpleNamespace) -> None:
    core = running(fake, 5)
    chosen = [fill(core, 2).slots for _ in range(5)]
    assert all(len(slots) == 2 for slots in chosen)
    assert Counter(slot for slots in chosen for slot in slots) == dict.fromkeys(range(5), 2)
    assert all(not set(one) & set(after) for one, after in pairwise(chosen))


def test_a_long_prompt_beside_decodes_is_cut_to_the_threshold(fake: SimpleNamespace) -> None:
    core = running(fake, 1, max_num_batched_tokens=8, long_prefill_token_threshold=3)
    core.add("long", list(range(20)), max_tokens=2)
    core.step()
    assert fill(core, 8).counts == [1, 3]
    assert fill(core, 8, "prefill").counts == [8], "nobody waits for it"


@pytest.mark.parametrize("found", [0, 1, 3])
def test_a_settled_row_takes_the_drafts_that_were_found(fake: SimpleNamespace, found: int) -> None:
    core = running(fake, 1, num_drafts=3)
    core.scheduler.table.num_drafts_S[0] = found
    rows = fill(core, 8)
    assert (rows.counts, rows.drafts) == ([found + 1], [found])


def test_a_row_in_flight_leaves_room_for_all_drafts_that_may_be_found(fake: SimpleNamespace) -> None:
    core = running(fake, 1, num_drafts=3, depth=2)
    assert core.scheduler.table.outputs_S[0] > 0
    rows = fill(core, 8)
    assert (rows.counts, rows.drafts) == ([4], [3])


def test_drafts_end_where_the_request_must(fake: SimpleNamespace) -> None:
    """With `n` tokens to go a row has at most n - 1 drafts: the last token is always sampled."""
    core = running(fake, 1, num_drafts=3)
    table = core.scheduler.table
    table.num_drafts_S[0] = 3
    for to_go in (1, 2, 3, 4, 5):
        table.limit_S[0] = table.known_S[0] + to_go
        assert fill(core, 8).drafts == [min(3, to_go - 1)]


def test_drafts_are_left_out_before_a_row_is(fake: SimpleNamespace) -> None:
    core = running(fake, 3, num_drafts=3)
    core.scheduler.table.num_drafts_S[:3] = 3
    assert fill(core, 12).drafts == [3, 3, 3]
    assert fill(core, 11).drafts == [0, 0, 0]
    assert fill(core, 3).slots == [0, 1, 2]


def test_a_row_that_must_be_complete_with_what_is_in_flight_is_left_out(fake: SimpleNamespace) -> None:
    core = fake.make_core(depth=2)
    core.add("one", [1, 2], max_tokens=1)
    core.add("two", [3, 4], max_tokens=2)
    core.step()
    assert fill(core, 8).slots == [1]


# KV runs out


def two_that_fill_all_kv(fake: SimpleNamespace, depth: int) -> Any:
    """r0 and r1 have run until each has two full blocks of four, which is all there is."""
    core = fake.make_core(num_blocks=1 + 4, block_size=4, depth=depth, prefix_caching=False)
    core.add("r0", [1, 2, 3, 4], max_tokens=9)
    core.add("r1", [5, 6, 7, 8], max_tokens=9)
    for _ in range(5):
        core.step()
    assert in_plan(core) == [0, 1]
    assert core.runner.plans[-1].start_R.tolist() == [7, 7]
    return core


def in_plan(core: Any, number: int = -1) -> list[int]:
    """Requests of a submitted plan."""
    listed: list[int] = core.runner.plans[number].request_R.tolist()
    return listed


def plans_of_next_steps(core: Any, count: int) -> list[list[int]]:
    """The requests of each of the next `count` steps, none where nothing is submitted."""
    listed = []
    for _ in range(count):
        before = len(core.runner.plans)
        core.step()
        listed.append(in_plan(core) if len(core.runner.plans) > before else [])
    return listed


def assert_both_say_what_they_say_alone(fake: SimpleNamespace, core: Any) -> None:
    core.run()
    core.assert_idle()
    for name, prompt in (("r0", [1, 2, 3, 4]), ("r1", [5, 6, 7, 8])):
        assert core.tokens(name) == fake.answer(prompt, CoreSampling(max_tokens=9, seed=0), 64)[0]


def test_at_depth_1_the_last_one_gives_its_blocks_in_the_same_step(fake: SimpleNamespace) -> None:
    core = two_that_fill_all_kv(fake, 1)
    assert plans_of_next_steps(core, 1) == [[0]]
    assert core.scheduler.stats.num_preemptions == 1
    assert_both_say_what_they_say_alone(fake, core)


def test_a_victim_in_flight_sits_out_one_step_and_gives_way_in_the_next(fake: SimpleNamespace) -> None:
    core = two_that_fill_all_kv(fake, 2)
    assert plans_of_next_steps(core, 2) == [[], [0]]
    assert core.scheduler.stats.num_preemptions == 1
    assert core.scheduler.stats.num_wasted_rows == 0
    assert_both_say_what_they_say_alone(fake, core)


def test_blocks_that_come_back_by_themselves_are_waited_for(fake: SimpleNamespace) -> None:
    core = two_that_fill_all_kv(fake, 2)
    core.engine.abort(AbortRequest(request_id="r1"))
    assert (core.kv.num_free(0), core.kv.num_pending(0)) == (0, 2)
    assert plans_of_next_steps(core, 2) == [[], [0]]
    assert core.scheduler.stats.num_preemptions == 0


def test_who_lacks_no_block_goes_on_while_another_waits(fake: SimpleNamespace) -> None:
    core = fake.make_core(num_blocks=1 + 6, block_size=4, depth=2, prefix_caching=False)
    for name, prompt in (("r0", [1, 2, 3, 4]), ("r1", [5, 6, 7, 8]), ("r2", [9])):
        core.add(name, prompt, max_tokens=9)
    assert plans_of_next_steps(core, 5) == [[0, 1, 2]] * 5
    core.engine.abort(AbortRequest(request_id="r1"))
    assert plans_of_next_steps(core, 2) == [[2], [0, 2]]


def test_whoever_lacks_a_block_and_is_last_gives_way_itself(fake: SimpleNamespace) -> None:
    core = fake.make_core(num_blocks=1 + 3, block_size=4, prefix_caching=False)
    core.add("r0", [1, 2, 3, 4], max_tokens=4)
    core.add("r1", [5, 6, 7], max_tokens=5)
    assert plans_of_next_steps(core, 3) == [[0, 1], [0, 1], [0]]
    assert core.scheduler.stats.num_preemptions == 1
    core.run()
    assert core.tokens("r1") == fake.answer([5, 6, 7], CoreSampling(max_tokens=5, seed=0), 64)[0]

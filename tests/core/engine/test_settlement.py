"""What a result does to its requests: tokens kept, KV confirmed, ends, and rows that came to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isoinfer.engine.messages import AbortRequest, TokenUpdate
from isoinfer.engine.plan import StepPlan, StepResult

SAID = 40
"""What every request says first."""
DRAFTS = [41, 42, 43]


def result_of(plan: StepPlan, tokens: Sequence[Sequence[int]], next_drafts: Sequence[Sequence[int]] = ()) -> StepResult:
    """A step that gave `tokens` to its sampling rows, and found `next_drafts`."""
    token_GJ = np.zeros((len(tokens), 4), dtype=np.int32)
    draft_GK = np.zeros((len(tokens), 3), dtype=np.int32)
    for row, listed in enumerate(tokens):
        token_GJ[row, : len(listed)] = listed
    for row, listed in enumerate(next_drafts):
        draft_GK[row, : len(listed)] = listed
    return StepResult(
        step_id=plan.step_id,
        token_GJ=token_GJ,
        count_G=np.array([len(listed) for listed in tokens], dtype=np.int32),
        draft_GK=draft_GK,
        num_drafts_G=np.array([len(listed) for listed in next_drafts] or [0] * len(tokens), dtype=np.int32),
        logprobs=None,
        prompt_logprobs=None,
    )


def drafted(fake: SimpleNamespace, count: int = 1, prompt: Sequence[int] = (1, 2), **settings: Any) -> Any:
    """A core whose requests r0, r1, ... have said SAID and are in a step with DRAFTS behind it: core and plan."""
    core = fake.make_core(num_drafts=3, block_size=settings.pop("block_size", 4))
    for index in range(count):
        core.add(f"r{index}", prompt, **{"max_tokens": 20, **settings})
    plan = core.scheduler.schedule()
    core.scheduler.settle(plan, result_of(plan, [[SAID]] * count, [DRAFTS] * count))
    plan = core.scheduler.schedule()
    assert plan.num_drafts_R.tolist() == [3] * count
    assert plan.token_ids_T.tolist() == [SAID, *DRAFTS] * count
    return core, plan


def settle(core: Any, plan: StepPlan, tokens: Sequence[Sequence[int]], **more: Any) -> list[TokenUpdate]:
    updates: list[TokenUpdate] = core.scheduler.settle(plan, result_of(plan, tokens, **more))
    core.scheduler.check()
    return updates


@pytest.mark.parametrize("accepted", range(4))
def test_accepted_drafts_are_kept_and_the_others_never_were(fake: SimpleNamespace, accepted: int) -> None:
    core, plan = drafted(fake)
    said = (*DRAFTS[:accepted], 50)
    (update,) = settle(core, plan, [said])
    table = core.scheduler.table
    assert (update.token_ids, update.finish_reason) == (said, "")
    assert table.tokens(0)[: table.known_S[0]].tolist() == [1, 2, SAID, *said]
    assert table.confirmed_S[0] == table.scheduled_S[0] == 3 + accepted
    assert (core.scheduler.stats.num_draft_tokens, core.scheduler.stats.num_accepted_tokens) == (3, accepted)


@pytest.mark.parametrize("at", range(4))
def test_a_stop_token_within_accepted_drafts_cuts_what_comes_after(fake: SimpleNamespace, at: int) -> None:
    said = [*DRAFTS, 50]
    core, plan = drafted(fake, stop_token_ids=(said[at], 60))
    (update,) = settle(core, plan, [said])
    assert update.token_ids == tuple(said[: at + 1])
    assert (update.finish_reason, update.stop_token) == ("stop", said[at])
    assert core.scheduler.num_unfinished == 0
    assert core.scheduler.kv_usage == 0.0


def test_a_stop_token_before_min_tokens_does_not_count(fake: SimpleNamespace) -> None:
    core, plan = drafted(fake, stop_token_ids=(41, 42), min_tokens=2)
    (update,) = settle(core, plan, [[41, 42, 43]])
    assert (update.token_ids, update.finish_reason) == ((41, 42), "stop"), "41 was only its second token"


def test_the_limit_within_accepted_drafts_cuts_too(fake: SimpleNamespace) -> None:
    core, plan = drafted(fake)
    request = core.scheduler.residents.at(0)
    request.limit = core.scheduler.table.limit_S[0] = 5
    (update,) = settle(core, plan, [[*DRAFTS, 50]])
    assert (update.token_ids, update.finish_reason, update.stop_token) == ((41, 42), "length", -1)


def test_another_s_stop_token_ends_nobody(fake: SimpleNamespace) -> None:
    core = fake.make_core(num_drafts=3)
    core.add("a", [1], stop_token_ids=(7,))
    core.add("b", [2])
    plan = core.scheduler.schedule()
    updates = settle(core, plan, [[8], [7]])
    assert [(update.token_ids, update.finish_reason) for update in updates] == [((8,), ""), ((7,), "")]


def test_kv_behind_the_token_that_ended_a_request_is_not_shared(fake: SimpleNamespace) -> None:
    core, plan = drafted(fake, block_size=1, stop_token_ids=(42,))
    settle(core, plan, [[*DRAFTS, 50]])
    whole = np.array([1, 2, SAID, *DRAFTS, 50, 51], dtype=np.int32)
    assert core.kv.lookup(whole, fake.make_request(0).cache_key).num_tokens == 4, "1, 2, SAID and 41"


def test_kv_of_rejected_drafts_is_not_shared(fake: SimpleNamespace) -> None:
    core, plan = drafted(fake, block_size=1)
    settle(core, plan, [[41, 50]])
    key = fake.make_request(0).cache_key
    found = [core.kv.lookup(np.array([1, 2, SAID, 41, t, 9], np.int32), key).num_tokens for t in (42, 50)]
    assert found == [4, 4], "the KV of 50 is not computed yet"


def test_the_drafts_for_the_next_step_are_kept_by_slot(fake: SimpleNamespace) -> None:
    core, plan = drafted(fake, count=2)
    settle(core, plan, [[50], [51]], next_drafts=[[11, 12], []])
    table = core.scheduler.table
    assert table.num_drafts_S[:2].tolist() == [2, 0]
    assert table.drafts_SK[0, :2].tolist() == [11, 12]
    assert core.scheduler.schedule().token_ids_T.tolist() == [50, 11, 12, 51]


def test_rows_of_requests_that_are_gone_are_counted_and_change_nothing(fake: SimpleNamespace) -> None:
    core, plan = drafted(fake, count=3)
    core.engine.abort(AbortRequest(request_id="r1"))
    core.scheduler.residents.preempt(core.scheduler.residents.by_id["r2"].slot)
    updates = settle(core, plan, [[50], [51], [52]], next_drafts=[[11], [12], [13]])
    assert [update.request_id for update in updates] == ["r0"]
    stats = core.scheduler.stats
    assert (stats.num_wasted_rows, stats.num_draft_tokens, stats.num_accepted_tokens) == (2, 3, 0)
    assert core.scheduler.residents.by_id["r2"].known_L.tolist() == [1, 2, SAID]


def test_a_row_that_does_not_sample_is_confirmed_and_says_nothing(fake: SimpleNamespace) -> None:
    core = fake.make_core(max_num_batched_tokens=4, num_drafts=3)
    core.add("a", list(range(6)))
    plan = core.scheduler.schedule()
    assert settle(core, plan, []) == []
    assert (core.scheduler.table.confirmed_S[0], core.scheduler.table.known_S[0]) == (4, 6)


def test_all_that_end_in_a_step_are_gone_after_it(fake: SimpleNamespace) -> None:
    core, plan = drafted(fake, count=3, stop_token_ids=(50,), max_tokens=5)
    updates = settle(core, plan, [[41, 50], [*DRAFTS, 44], [41]])
    assert [update.finish_reason for update in updates] == ["stop", "length", ""]
    assert list(core.scheduler.residents.by_id) == ["r2"]
    assert core.scheduler.residents.stop_ids.may_end(np.array([[50]], np.int32)).tolist() == [True], "of r2"


def test_steps_settle_in_the_order_they_were_submitted(fake: SimpleNamespace) -> None:
    core = fake.make_core(depth=2)
    core.add("a", [1, 2])
    first = core.scheduler.schedule()
    second = core.scheduler.schedule()
    with pytest.raises(AssertionError, match="in the order they were submitted"):
        core.scheduler.settle(second, replace(result_of(first, [[5]]), step_id=2))

"""Who of the waiting starts, and who makes way for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isoinfer.engine.messages import CoreSampling


def steps(core: Any, count: int) -> list[list[int]]:
    """The requests of each of the next `count` steps, none where nothing is submitted."""
    listed = []
    for _ in range(count):
        before = len(core.runner.plans)
        core.step()
        listed.append(core.runner.plans[-1].request_R.tolist() if len(core.runner.plans) > before else [])
    return listed


def alone(fake: SimpleNamespace, prompt: list[int], max_tokens: int) -> list[int]:
    tokens: list[int] = fake.answer(prompt, CoreSampling(max_tokens=max_tokens, seed=0), 64)[0]
    return tokens


def test_no_more_run_at_once_than_was_asked_for(fake: SimpleNamespace) -> None:
    core = fake.make_core(max_num_seqs=2)
    for index in range(4):
        core.add(f"r{index}", [index], max_tokens=2)
    assert steps(core, 4) == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_at_depth_2_a_newcomer_takes_a_spare_slot_while_the_old_one_is_in_flight(fake: SimpleNamespace) -> None:
    core = fake.make_core(max_num_seqs=2, depth=2)
    assert core.scheduler.residents.slots.num_free == 3
    core.add("r0", [0], max_tokens=9, stop_token_ids=tuple(range(61)))
    core.add("r1", [1], max_tokens=9)
    core.add("r2", [2], max_tokens=9)
    assert steps(core, 3) == [[0, 1], [0, 1], [1, 2]], "r0 stopped at its first token, and its row was wasted"
    assert core.scheduler.num_running == 2


def test_a_newcomer_shares_the_budget_that_decodes_leave(fake: SimpleNamespace) -> None:
    core = fake.make_core(max_num_batched_tokens=5)
    core.add("r0", [0], max_tokens=9)
    core.step()
    core.add("r1", list(range(9)), max_tokens=2)
    core.add("r2", [2], max_tokens=2)
    steps(core, 3)
    rows = [dict(zip(p.request_R.tolist(), p.query_len_R.tolist(), strict=True)) for p in core.runner.plans]
    assert rows[1:4] == [{0: 1, 1: 4}, {0: 1, 1: 4}, {0: 1, 1: 1, 2: 1}]


def test_the_first_chunk_beside_decodes_is_cut_to_the_threshold(fake: SimpleNamespace) -> None:
    core = fake.make_core(long_prefill_token_threshold=3)
    core.add("r0", list(range(8)), max_tokens=9)
    core.step()
    core.add("r1", list(range(20, 28)), max_tokens=2)
    core.step()
    counts = [plan.query_len_R.tolist() for plan in core.runner.plans]
    assert counts == [[8], [1, 3]], "nobody decoded when r0 came"


def test_a_prompt_starts_only_where_kv_holds_all_of_it_and_a_block_for_each_that_runs(fake: SimpleNamespace) -> None:
    core = fake.make_core(num_blocks=1 + 6, block_size=4, max_num_batched_tokens=8, prefix_caching=False)
    core.add("r0", list(range(8)), max_tokens=4)
    core.add("r1", list(range(10, 22)), max_tokens=4)
    assert core.scheduler.kv_usage == 0
    core.step()
    assert core.scheduler.num_running == 1, "r1 needs 3 blocks and one stays free for r0, which takes another at once"
    core.run()
    assert core.scheduler.stats.num_preemptions == 0
    core.assert_idle()


def test_prompts_that_run_keep_what_they_still_lack(fake: SimpleNamespace) -> None:
    """A newcomer that fits in what is free now does not take what the chunks of another will need."""
    core = fake.make_core(num_blocks=1 + 8, block_size=4, long_prefill_token_threshold=2, prefix_caching=False)
    core.add("decodes", [50], max_tokens=9)
    core.step()
    core.add("chunks", list(range(20)), max_tokens=2)
    core.add("fits", list(range(30, 36)), max_tokens=2)
    assert steps(core, 3) == [[0, 1]] * 3
    assert core.kv.num_free(0) >= 2 + core.scheduler.num_running
    core.run()
    assert core.scheduler.stats.num_preemptions == 0


def test_cached_tokens_are_not_computed_again(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    core.add("first", list(range(13)), max_tokens=1)
    core.run()
    core.add("second", [*range(12), 50], max_tokens=1)
    core.run()
    plan = core.runner.plans[-1]
    assert (plan.start_R.tolist(), plan.query_len_R.tolist()) == ([12], [1])
    assert core.updates["second"][-1].num_cached_tokens == 12
    assert core.tokens("second") == alone(fake, [*range(12), 50], 1)
    core.add("salted", [*range(12), 50], salt="mine", max_tokens=1)
    core.run()
    assert core.updates["salted"][-1].num_cached_tokens == 0


def test_who_wants_prompt_logprobs_reads_nothing_from_the_cache(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    for name in ("first", "second"):
        core.add(name, list(range(13)), max_tokens=1, num_prompt_logprobs=0)
        core.run()
    assert core.runner.plans[-1].query_len_R.tolist() == [13]


def test_the_longest_cached_prefix_starts_first(fake: SimpleNamespace) -> None:
    core = fake.make_core(max_num_seqs=1, scheduling_policy="lpm")
    core.add("warm", list(range(9)), max_tokens=1)
    core.run()
    core.add("cold", [40] * 9, max_tokens=1)
    core.add("hot", [*range(8), 50], max_tokens=1)
    assert steps(core, 2) == [[2], [1]]


# one goes before another


def blocked(fake: SimpleNamespace, depth: int, **settings: Any) -> Any:
    """A request of low priority decodes in the only seat when an urgent one comes."""
    core = fake.make_core(max_num_seqs=1, depth=depth, scheduling_policy="priority", **settings)
    core.add("low", [1, 2, 3], priority=5, max_tokens=8)
    steps(core, 3)
    core.add("urgent", [4, 5], priority=0, max_tokens=2)
    return core


def test_an_urgent_request_takes_the_place_of_the_last_one_at_depth_1(fake: SimpleNamespace) -> None:
    core = blocked(fake, 1)
    # It is refused in its first step, in which the other still runs, and displaces it in the next.
    assert steps(core, 4) == [[0], [1], [1], [0]]
    core.run()
    assert core.scheduler.stats.num_preemptions == 1
    assert core.tokens("low") == alone(fake, [1, 2, 3], 8)
    assert core.tokens("urgent") == alone(fake, [4, 5], 2)
    core.assert_idle()


def test_at_depth_2_the_last_one_sits_out_a_step_first(fake: SimpleNamespace) -> None:
    core = blocked(fake, 2)
    assert steps(core, 4) == [[0], [], [1], [1]]
    core.run()
    assert core.scheduler.stats.num_preemptions == 1
    assert core.scheduler.stats.num_wasted_rows == 0, "nothing of what was in flight is lost"
    assert core.tokens("low") == alone(fake, [1, 2, 3], 8)
    assert core.tokens("urgent") == alone(fake, [4, 5], 2)
    core.assert_idle()


@pytest.mark.parametrize("depth", [1, 2])
def test_who_is_not_more_urgent_waits(fake: SimpleNamespace, depth: int) -> None:
    core = fake.make_core(max_num_seqs=1, depth=depth, scheduling_policy="priority")
    core.add("first", [1, 2, 3], priority=1, max_tokens=6)
    steps(core, 2)
    core.add("same", [4], priority=1, max_tokens=1)
    core.add("later", [5], priority=2, max_tokens=1)
    core.run()
    assert core.scheduler.stats.num_preemptions == 0


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_other_policies_displace_nobody(fake: SimpleNamespace, depth: int, policy: str) -> None:
    core = fake.make_core(max_num_seqs=1, depth=depth, scheduling_policy=policy)
    core.add("first", [1, 2, 3], priority=5, max_tokens=6)
    steps(core, 2)
    core.add("urgent", [4], priority=0, max_tokens=1)
    core.run()
    assert core.scheduler.stats.num_preemptions == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_only_as_many_give_way_as_must(fake: SimpleNamespace, depth: int) -> None:
    core = fake.make_core(num_blocks=1 + 8, block_size=4, depth=depth, scheduling_policy="priority")
    for index in range(3):
        core.add(f"r{index}", [index] * 4, priority=5, max_tokens=8)
    steps(core, 2)
    core.add("urgent", [9] * 6, priority=0, max_tokens=2)
    core.run()
    epochs = dict.fromkeys(range(4), 0)
    for plan in core.runner.plans:
        epochs |= dict(zip(plan.request_R.tolist(), plan.epoch_R.tolist(), strict=True))
    assert [epochs[number] for number in range(4)] == [0, 0, 1, 0]
    for index in range(3):
        assert core.tokens(f"r{index}") == alone(fake, [index] * 4, 8)


def test_a_refused_one_that_ended_displaces_nobody(fake: SimpleNamespace) -> None:
    core = blocked(fake, 1)
    core.step()
    core.scheduler.abort("urgent")
    core.add("next", [7], priority=0, max_tokens=1)
    assert steps(core, 1) == [[0]], "it has not been refused yet: a seat may be free"
    core.run()
    core.assert_idle()

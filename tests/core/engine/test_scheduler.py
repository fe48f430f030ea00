"""What the scheduler promises, one scenario each. Random loads are in test_random_loads.py."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from isoinfer.engine.messages import AbortRequest, CoreSampling
from isoinfer.errors import RequestError, UserError


def _abort(request_id: str) -> AbortRequest:
    return AbortRequest(request_id=request_id)


def test_preemption_computes_again_and_keeps_the_tokens(fake: SimpleNamespace) -> None:
    core = fake.make_core(num_blocks=1 + 7, block_size=4)  # 28 tokens for three that grow to 20
    prompts = {f"r{i}": [i, i + 1, i + 2, i + 3] for i in range(3)}
    for name, prompt in prompts.items():
        core.add(name, prompt, max_tokens=16)
    core.run()
    assert core.scheduler.stats.num_preemptions > 0
    epochs = {int(e) for plan in core.runner.plans for e in plan.epoch_R}
    assert max(epochs) > 0
    for name, prompt in prompts.items():
        expected, _ = fake.answer(prompt, CoreSampling(max_tokens=16, seed=0), 64)
        assert core.tokens(name) == expected
    core.assert_idle()


def test_the_latest_arrival_is_preempted_and_the_oldest_never(fake: SimpleNamespace) -> None:
    core = fake.make_core(num_blocks=1 + 5, block_size=4)
    for index in range(3):
        core.add(f"r{index}", [index] * 4, max_tokens=16)
    core.run()
    highest = {}
    for plan in core.runner.plans:
        for number, epoch in zip(plan.request_R.tolist(), plan.epoch_R.tolist(), strict=True):
            highest[number] = max(highest.get(number, 0), epoch)
    assert highest[0] == 0
    assert highest[2] > 0


def test_a_preempted_request_comes_back_before_those_that_never_ran(fake: SimpleNamespace) -> None:
    core = fake.make_core(num_blocks=1 + 7, block_size=4, max_num_seqs=3)
    for index in range(5):
        core.add(f"r{index}", [index] * 4, max_tokens=16)
    core.run()
    assert core.scheduler.stats.num_preemptions > 0
    begun = {n: plan.step_id for plan in core.runner.plans[::-1] for n in plan.request_R.tolist()}
    restarted = {n for plan in core.runner.plans for n, e in zip(plan.request_R, plan.epoch_R, strict=True) if e}
    for number in restarted:
        back = max(plan.step_id for plan in core.runner.plans for n in plan.request_R[plan.start_R == 0] if n == number)
        assert all(begun[n] >= back for n in range(number + 1, 5) if begun[n] > begun[number])


def test_a_long_prompt_is_cut_to_the_budget_while_decodes_go_on(fake: SimpleNamespace) -> None:
    core = fake.make_core(max_num_batched_tokens=8)
    core.add("short", [1, 2], max_tokens=12)
    core.step()
    core.add("long", list(range(30)), max_tokens=2)
    core.run()
    chunks = [dict(zip(p.request_R.tolist(), p.query_len_R.tolist(), strict=True)) for p in core.runner.plans]
    assert [step.get(1) for step in chunks[1:6]] == [7, 7, 7, 7, 2]
    assert all(step[0] == 1 for step in chunks[1:12])


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ([], 4, "1 to 63 tokens, got 0"),
        ([5] * 64, 4, "1 to 63 tokens, got 64"),
        ([5] * 20, 30, "50 tokens need 13 KV blocks of 4 tokens .* which has 10; lower max_tokens"),
    ],
)
def test_what_can_never_fit_is_refused_with_the_numbers(
    fake: SimpleNamespace, prompt: list[int], max_tokens: int, message: str
) -> None:
    core = fake.make_core(num_blocks=11, block_size=4)
    with pytest.raises(RequestError, match=message):
        core.add("big", prompt, max_tokens=max_tokens)
    assert core.engine.num_unfinished == 0
    core.add("big", [1, 2], max_tokens=38)  # exactly everything: the id is free and it fits
    core.run()
    assert core.reason("big") == "length"
    assert len(core.tokens("big")) == 38


def test_an_id_in_use_is_refused_and_free_again_afterwards(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    core.add("x", [1])
    with pytest.raises(RequestError, match="'x' is in use"):
        core.add("x", [2])
    core.run()
    core.add("x", [3])
    core.run()
    core.assert_idle()


def test_abort_takes_the_exact_id(fake: SimpleNamespace) -> None:
    core = fake.make_core(max_num_seqs=2)
    for name in ("job-1", "job-10", "job-100"):
        core.add(name, [7, 8, 9], max_tokens=6)
    core.step()
    assert [u.request_id for u in core.take(core.engine.abort(_abort("job-1")))] == ["job-1"]
    assert core.engine.abort(_abort("job-1")) == []
    assert core.engine.abort(_abort("job")) == []
    core.run()
    expected, _ = fake.answer([7, 8, 9], CoreSampling(max_tokens=6, seed=0), 64)
    assert core.reason("job-1") == "abort"
    assert [core.tokens(name) for name in ("job-10", "job-100")] == [expected] * 2
    core.assert_idle()


def test_a_failed_step_ends_its_own_requests_only(fake: SimpleNamespace) -> None:
    core = fake.make_core(max_num_seqs=2, fail_at=[2])
    for index in range(3):
        core.add(f"r{index}", [index, 5], max_tokens=5)
    core.run()
    assert [core.reason(f"r{index}") for index in range(3)] == ["error", "error", "length"]
    assert core.updates["r0"][-1].error == "step 2 was told to fail"
    assert core.scheduler.stats.num_failed_steps == 1
    assert core.tokens("r2") == fake.answer([2, 5], CoreSampling(max_tokens=5, seed=0), 64)[0]
    core.assert_idle()


def test_rows_of_requests_that_ended_in_flight_are_dropped(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    for name in ("a", "b", "c"):
        core.add(name, [3, 4])
    plan = core.scheduler.schedule()
    handle = core.runner.submit(plan)
    core.runner.sample(handle, core.scheduler.sample_plan(plan))
    core.take(core.engine.abort(_abort("b")))
    core.add("b", [9])  # the same id again, at once: another request
    updates = core.scheduler.settle(plan, core.runner.settle(handle))
    assert [u.request_id for u in core.take(updates)] == ["a", "c"]
    core.updates["b"] = []
    core.run()
    assert core.tokens("b") == fake.answer([9], CoreSampling(max_tokens=4, seed=0), 64)[0]
    assert core.tokens("c") == fake.answer([3, 4], CoreSampling(max_tokens=4, seed=0), 64)[0]
    core.assert_idle()


def test_a_row_of_a_request_that_was_restarted_in_flight_is_dropped(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    for name in ("a", "b"):
        core.add(name, [3, 4])
    plan = core.scheduler.schedule()
    handle = core.runner.submit(plan)
    core.runner.sample(handle, core.scheduler.sample_plan(plan))
    core.scheduler.residents.preempt(core.scheduler.residents.by_id["b"].slot)
    updates = core.scheduler.settle(plan, core.runner.settle(handle))
    assert [u.request_id for u in core.take(updates)] == ["a"]
    core.run()
    assert core.tokens("b") == core.tokens("a") == fake.answer([3, 4], CoreSampling(max_tokens=4, seed=0), 64)[0]
    core.assert_idle()


def test_counts(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    core.add("a", [1, 2, 3], max_tokens=3)
    assert (core.scheduler.num_unfinished, core.scheduler.num_running) == (1, 0)
    core.step()
    assert (core.scheduler.num_unfinished, core.scheduler.num_running) == (1, 1)
    assert core.scheduler.kv_usage == pytest.approx(1 / 64)
    core.run()
    assert core.scheduler.stats.num_steps == 3
    assert core.scheduler.stats.num_scheduled_tokens == 5
    assert core.scheduler.schedule() is None


def test_sizes_below_one_are_refused(fake: SimpleNamespace) -> None:
    with pytest.raises(UserError, match="max_num_seqs must be at least 1, got 0"):
        fake.make_core(max_num_seqs=0)


def test_plans_are_plain_arrays(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    core.add("a", [1, 2, 3])
    plan = core.scheduler.schedule()
    for name in type(plan).__slots__:
        value = getattr(plan, name)
        values = value if type(value) is tuple else (value,)
        assert {type(one) for one in values} <= {int, np.ndarray}, name


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_of_two_phase_is_prefill_or_decode(fake: SimpleNamespace, depth: int) -> None:
    core = fake.make_core(depth=depth, scheduling_policy="two-phase", max_num_batched_tokens=5)
    core.add("first", [1, 2], max_tokens=12)
    core.step()
    for index in range(3):
        core.add(f"r{index}", [10 + index] * 7, max_tokens=3)
    core.run()
    sampled: set[int] = set()
    for plan in core.runner.plans:
        decodes = sampled & set(plan.request_R.tolist())
        assert not decodes or plan.query_len_R.max() == 1, f"step {plan.step_id} decodes and prefills"
        sampled |= set(plan.request_R[plan.samples_R].tolist())
    assert sampled == {0, 1, 2, 3}

"""Random loads on the real scheduler: whatever happens around a request, it says what it says alone."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isoinfer.engine.messages import CoreSampling
from isoinfer.errors import RequestError, UserError

MAX_LEN = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request of a load: when it comes, what it asks, and when it is aborted (-1 never)."""

    arrival: int
    prompt: tuple[int, ...]
    sampling: CoreSampling
    abort_at: int
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """All jobs, and the sizes of the engine."""

    jobs: tuple[Job, ...]
    block_size: int
    num_blocks: int
    max_num_seqs: int
    budget: int
    fail_at: frozenset[int]
    depth: int
    num_drafts: int
    windows: tuple[int | None, ...]
    policy: str
    threshold: int


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    max_tokens = draw(st.integers(1, 14))
    sampling = CoreSampling(
        max_tokens=max_tokens,
        seed=draw(st.integers(-3, 3)),
        min_tokens=draw(st.integers(0, max_tokens)),
        stop_token_ids=tuple(draw(st.lists(st.integers(0, 60), max_size=12, unique=True))),
        num_logprobs=draw(st.sampled_from([-1, 0, 2])),
        num_prompt_logprobs=draw(st.sampled_from([-1, -1, 0, 1])),
    )
    shared = draw(st.sampled_from([0, 0, 5, 17]))  # some prompts begin alike
    prompt = [*range(shared), *draw(st.lists(st.integers(0, 60), min_size=1, max_size=MAX_LEN - 20 - shared))]
    return Job(
        arrival=draw(st.integers(0, 12)),
        prompt=tuple(prompt),
        sampling=sampling,
        abort_at=draw(st.sampled_from([-1, -1, -1, 0, 3, 9])),
        priority=draw(st.integers(0, 2)),
    )


@st.composite
def loads(draw: st.DrawFn) -> Load:
    listed = tuple(draw(st.lists(jobs(), min_size=1, max_size=7)))
    block_size = draw(st.sampled_from([1, 4, 16]))
    longest = max(min(MAX_LEN, len(job.prompt) + job.sampling.max_tokens) for job in listed)
    need = -(-longest // block_size)
    return Load(
        jobs=listed,
        block_size=block_size,
        num_blocks=1 + draw(st.sampled_from([-(-need * 21 // 20), 2 * need, 8 * need])),
        max_num_seqs=draw(st.integers(1, 5)),
        budget=draw(st.integers(1, 24)),
        fail_at=frozenset(draw(st.lists(st.integers(1, 20), max_size=2))),
        depth=draw(st.integers(1, 2)),
        num_drafts=draw(st.sampled_from([0, 0, 1, 3])),
        windows=draw(st.sampled_from([(None,), (None, 3), (None, 9, 20)])),
        policy=draw(st.sampled_from(["fcfs", "fcfs", "priority", "lpm", "two-phase"])),
        threshold=draw(st.sampled_from([0, 0, 2])),
    )


def play(fake: SimpleNamespace, load: Load) -> Any:
    """Run a load to its end, within the number of steps that guarantees progress."""
    core = fake.make_core(
        num_blocks=load.num_blocks,
        block_size=load.block_size,
        max_num_seqs=load.max_num_seqs,
        max_num_batched_tokens=load.budget,
        max_model_len=MAX_LEN,
        fail_at=load.fail_at,
        depth=load.depth,
        num_drafts=load.num_drafts,
        windows=load.windows,
        scheduling_policy=load.policy,
        long_prefill_token_threshold=load.threshold,
    )
    # The first request computes at least one token in every step, or at depth 2 in every second one when KV is
    # short; one that goes before it may make it start again, and a step of prefill may come between.
    work = sum(len(job.prompt) + job.sampling.max_tokens for job in load.jobs)
    bound = 13 + work * load.depth * (2 if load.policy == "two-phase" else 1) * (3 if load.policy == "priority" else 1)
    for step in range(bound):
        for index, job in enumerate(load.jobs):
            if job.arrival == step:
                core.add(f"job-{index}", job.prompt, priority=job.priority, **_fields(job.sampling))
            if job.abort_at == step:
                core.take(core.engine.abort(_abort(f"job-{index}")))
        core.step()
    core.assert_idle()
    return core


def _fields(sampling: CoreSampling) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in CoreSampling.__slots__}


def _abort(request_id: str) -> Any:
    from isoinfer.engine.messages import AbortRequest

    return AbortRequest(request_id=request_id)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(load=loads())
def test_every_request_says_what_it_says_alone(fake: SimpleNamespace, load: Load) -> None:
    core = play(fake, load)
    for index, job in enumerate(load.jobs):
        name = f"job-{index}"
        tokens, reason = fake.answer(job.prompt, job.sampling, MAX_LEN)
        got, got_reason = core.tokens(name), core.reason(name)
        if got_reason in ("stop", "length"):
            assert (got, got_reason) == (tokens, reason)
            assert core.updates[name][-1].stop_token == (tokens[-1] if reason == "stop" else -1)
        else:
            assert (got_reason == "abort" and job.abort_at >= 0) or (got_reason == "error" and load.fail_at)
            assert got == tokens[: len(got)]
        check_logprobs(fake, job, core.updates[name], got, complete=got_reason in ("stop", "length"))


def check_logprobs(fake: SimpleNamespace, job: Job, updates: list[Any], output: list[int], *, complete: bool) -> None:
    """Every output token has its own; every prompt position comes once and in order."""
    own = [x for u in updates if u.logprobs is not None for x in u.logprobs.logprob_T.tolist()]
    history = [*job.prompt, *output]
    size = len(job.prompt)
    expected = [fake.logprob_of(history[: size + i], token) for i, token in enumerate(output)]
    assert own == (expected if job.sampling.num_logprobs >= 0 else [])
    wide = [u.logprobs.top_ids_TX.shape for u in updates if u.logprobs is not None]
    assert all(shape[1] == job.sampling.num_logprobs for shape in wide)
    assert sum(shape[0] for shape in wide) == len(own)
    prompt: list[float] = []
    for update in updates:
        if update.prompt_logprobs is not None:
            assert update.prompt_logprobs_start == len(prompt) + 1
            prompt += update.prompt_logprobs.logprob_T.tolist()
            assert update.prompt_logprobs.top_ids_TX.shape[1] == job.sampling.num_prompt_logprobs
    due = [fake.logprob_of(history[:p], history[p]) for p in range(1, size)]
    if job.sampling.num_prompt_logprobs < 0:
        due = []
    assert prompt == (due if complete else due[: len(prompt)])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(load=loads())
def test_order_budget_and_decodes_of_every_step(fake: SimpleNamespace, load: Load) -> None:
    plans = play(fake, load).runner.plans
    last_seen = {number: plan.step_id for plan in plans for number in plan.request_R.tolist()}
    started: set[tuple[int, int]] = set()
    decoding: dict[tuple[int, int], int] = {}
    for plan in plans:
        assert plan.num_tokens <= load.budget
        assert plan.num_rows <= load.max_num_seqs
        assert len(set(plan.slot_R.tolist())) == plan.num_rows
        assert (plan.remap_R == -1).all()
        assert plan.token_ids_T.min() >= 0
        for key, count, samples in _rows(plan):
            if key not in started:
                started.add(key)
                overtaken = [n for n in range(key[0]) if last_seen.get(n, 0) > plan.step_id and n not in plan.request_R]
                assert overtaken == [], "admission is first come, first served, also after a preemption"
            if key in decoding:
                assert decoding[key] == plan.step_id - 1, "a decode waited although it was not preempted"
                assert count == 1
                assert samples
            if samples:
                decoding[key] = plan.step_id


def _rows(plan: Any) -> list[tuple[tuple[int, int], int, bool]]:
    keys = zip(plan.request_R.tolist(), plan.epoch_R.tolist(), strict=True)
    return list(zip(keys, plan.query_len_R.tolist(), plan.samples_R.tolist(), strict=True))


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
        ([5] * 20, 30, "may grow to 50 tokens but all KV memory holds 40"),
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
    core.scheduler._preempt(core.scheduler._by_id["b"])
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
        assert type(value) in (int, np.ndarray), name

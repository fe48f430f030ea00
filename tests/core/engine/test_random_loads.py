"""Random loads on the real scheduler: whatever happens around a request, it says what it says alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isoinfer.engine.messages import AbortRequest, CoreSampling

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


DEPTHS = st.integers(1, 2)
POLICIES = st.sampled_from(["fcfs", "fcfs", "priority", "lpm", "two-phase"])


@st.composite
def loads(
    draw: st.DrawFn, depths: st.SearchStrategy[int] = DEPTHS, policies: st.SearchStrategy[str] = POLICIES
) -> Load:
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
        depth=draw(depths),
        num_drafts=draw(st.sampled_from([0, 0, 1, 3])),
        windows=draw(st.sampled_from([(None,), (None, 3), (None, 9, 20)])),
        policy=draw(policies),
        threshold=draw(st.sampled_from([0, 0, 2])),
    )


@dataclass(slots=True)
class Played:
    """A load that ran to its end. `numbers` of the requests by name; how many rows of each were `wasted`."""

    core: Any
    numbers: dict[str, int]
    wasted: Counter[int]


def play(fake: SimpleNamespace, load: Load) -> Played:
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
    played = Played(core, {}, count_wasted(core.scheduler))
    # The first request computes at least one token in every step, or at depth 2 in every second one when KV is
    # short; one that goes before it may make it start again, and a step of prefill may come between.
    work = sum(len(job.prompt) + job.sampling.max_tokens for job in load.jobs)
    bound = 13 + work * load.depth * (2 if load.policy == "two-phase" else 1) * (3 if load.policy == "priority" else 1)
    for step in range(bound):
        for index, job in enumerate(load.jobs):
            name = f"job-{index}"
            if job.arrival == step:
                core.add(name, job.prompt, priority=job.priority, **_fields(job.sampling))
                played.numbers[name] = core.scheduler.residents.by_id[name].number
            if job.abort_at == step:
                core.take(core.engine.abort(AbortRequest(request_id=name)))
        core.step()
    core.assert_idle()
    return played


def count_wasted(scheduler: Any) -> Counter[int]:
    """Counts the rows of each request, by number, that are settled when it is no longer there, from now on."""
    wasted: Counter[int] = Counter()
    settle = scheduler.settle

    def counting(plan: Any, result: Any) -> Any:
        current_R = scheduler.table.is_current(plan.slot_R, plan.request_R, plan.epoch_R)
        wasted.update(plan.request_R[~current_R].tolist())
        return settle(plan, result)

    scheduler.settle = counting
    return wasted


def _fields(sampling: CoreSampling) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in CoreSampling.__slots__}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(load=loads())
def test_every_request_says_what_it_says_alone(fake: SimpleNamespace, load: Load) -> None:
    played = play(fake, load)
    core, num_wasted = played.core, played.core.scheduler.stats.num_wasted_rows
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
        may_waste = load.depth == 2 and (got_reason != "length" or load.num_drafts > 0)
        assert played.wasted[played.numbers[name]] <= may_waste, f"{got_reason} wastes more than it must"
        check_logprobs(fake, job, core.updates[name], got, complete=got_reason in ("stop", "length"))
    assert num_wasted == played.wasted.total()


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


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(load=loads())
def test_every_step_keeps_to_budget_slots_and_order(fake: SimpleNamespace, load: Load) -> None:
    plans = play(fake, load).core.runner.plans
    begun: list[int] = []
    started: set[tuple[int, int]] = set()
    sampled: set[tuple[int, int]] = set()
    for plan in plans:
        assert plan.num_tokens <= load.budget
        assert plan.num_rows <= load.max_num_seqs
        assert len(set(plan.slot_R.tolist())) == plan.num_rows
        assert load.depth == 2 or not plan.is_remapped
        assert plan.token_ids_T.min() >= 0
        assert (plan.num_drafts_R < plan.query_len_R).all()
        prompts = [key for key, count, _ in _rows(plan) if count > 1 or key not in started]
        decodes = [key for key, _, _ in _rows(plan) if key in sampled]
        assert load.policy != "two-phase" or not prompts or not decodes, "a step is prefill or decode"
        started |= {key for key, _, _ in _rows(plan)}
        sampled |= {key for key, _, samples in _rows(plan) if samples}
        begun += [number for number in plan.request_R.tolist() if number not in begun]
    if load.policy in ("fcfs", "two-phase"):
        assert begun == sorted(begun), "admission is first come, first served"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(load=loads(depths=st.just(1), policies=st.sampled_from(["fcfs", "priority", "lpm"])))
def test_no_decode_waits_where_steps_settle_at_once(fake: SimpleNamespace, load: Load) -> None:
    load = replace(load, budget=max(load.budget, load.max_num_seqs))
    plans = play(fake, load).core.runner.plans
    last_seen = {number: plan.step_id for plan in plans for number in plan.request_R.tolist()}
    started: set[tuple[int, int]] = set()
    decoding: dict[tuple[int, int], int] = {}
    for plan in plans:
        for key, count, samples in _rows(plan):
            if key not in started and load.policy == "fcfs":
                overtaken = [n for n in range(key[0]) if last_seen.get(n, 0) > plan.step_id and n not in plan.request_R]
                assert overtaken == [], "admission is first come, first served, also after a preemption"
            started.add(key)
            if key in decoding:
                assert decoding[key] == plan.step_id - 1, "a decode waited although it was not preempted"
                assert count == 1
                assert samples
            if samples:
                decoding[key] = plan.step_id


def _rows(plan: Any) -> list[tuple[tuple[int, int], int, bool]]:
    """Request and epoch of each row, its tokens but for the drafts, whether it samples."""
    keys = zip(plan.request_R.tolist(), plan.epoch_R.tolist(), strict=True)
    own_R = plan.query_len_R - plan.num_drafts_R
    return list(zip(keys, own_R.tolist(), plan.samples_R.tolist(), strict=True))

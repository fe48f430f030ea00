"""The kinds of faults that other engines had when they began to schedule ahead, each provoked at every step offset.

A request says what it says alone, or the fault is here too. The fake model reads everything back through block
tables, and `Watch` looks whether a step's KV stays where it was until the step has settled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.engine.messages import AbortRequest, CoreSampling
from isoinfer.errors import RequestError
from isoinfer.sampling_params import SamplingParams

OFFSETS = range(14)
DRAFTS = [0, 3]
GARBAGE = 7777
PROMPTS = {"a": [1, 2, 3, 4, 5, 6, 7, 8, 9], "b": [1, 2, 3, 4, 5, 6, 7, 8, 30], "c": [20, 21]}
"""The first two share two blocks of four."""


class Watch:
    """Asserts that what a step reads of former tokens is untouched when it settles, for a core's runner."""

    def __init__(self, core: Any) -> None:
        self._core, self._settle = core, core.runner.settle
        core.runner.settle = self.settle

    def settle(self, handle: Any) -> Any:
        runner, plan = self._core.runner, handle.plan
        for row, rejected in enumerate(handle.rejected):
            start = int(plan.start_R[row]) - rejected
            for memory, table_RB, window in zip(runner.memories, plan.block_tables, runner.windows, strict=True):
                position_L = np.arange(max(0, start - window + 1) if window else 0, start)
                blocks = table_RB[row][position_L // runner.block_size]
                seen = memory[blocks, position_L % runner.block_size]
                assert (seen >= 0).all(), f"step {plan.step_id} lost KV that it reads"
        return self._settle(handle)


def make(fake: SimpleNamespace, **options: Any) -> Any:
    """A core of depth 2 with three requests on small blocks."""
    core = fake.make_core(**{"depth": 2, "block_size": 4, "max_num_batched_tokens": 8, **options})
    Watch(core)
    for name, prompt in PROMPTS.items():
        core.add(name, prompt, max_tokens=10)
    return core


def alone(fake: SimpleNamespace, name: str, **sampling: Any) -> list[int]:
    """What a request says when it is alone."""
    tokens: list[int] = fake.answer(PROMPTS[name], CoreSampling(**{"max_tokens": 10, "seed": 0, **sampling}), 64)[0]
    return tokens


def finish(fake: SimpleNamespace, core: Any, *names: str) -> None:
    """Run to the end; all of `names` end as they do alone, and nothing is left."""
    core.run()
    core.assert_idle()
    for name in names or PROMPTS:
        assert (core.tokens(name), core.reason(name)) == (alone(fake, name), "length"), name


@pytest.mark.parametrize("num_drafts", DRAFTS)
def test_t01_preemption_while_its_output_is_in_flight(fake: SimpleNamespace, num_drafts: int) -> None:
    """The ledger never goes negative (checked in every step), and no token is lost or said twice."""
    for offset in OFFSETS:
        for name in PROMPTS:
            core = make(fake, num_drafts=num_drafts, windows=(None, 3))
            for _ in range(offset):
                core.step()
            request = core.scheduler.residents.by_id.get(name)
            if request is not None and request.slot >= 0:
                core.scheduler.residents.preempt(request.slot)
                core.scheduler.check()
            finish(fake, core)


def test_t01_preemption_by_a_pool_that_is_too_small(fake: SimpleNamespace) -> None:
    for num_drafts in DRAFTS:
        for num_blocks in range(6, 13):
            core = make(fake, num_blocks=num_blocks, num_drafts=num_drafts, prefix_caching=False)
            finish(fake, core)
            assert num_blocks > 8 or core.scheduler.stats.num_preemptions > 0


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    budget=st.integers(1, 12),
    threshold=st.integers(0, 3),
    num_drafts=st.sampled_from(DRAFTS),
)
def test_t02_a_token_to_come_is_reserved_for_exactly_the_rows_that_sample(
    fake: SimpleNamespace, prompts: list[int], budget: int, threshold: int, num_drafts: int
) -> None:
    core = fake.make_core(
        depth=2,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=threshold,
        num_drafts=num_drafts,
        max_num_seqs=5,
    )
    for index, size in enumerate(prompts):
        core.add(str(index), [index] * size, max_tokens=3)
    table = core.scheduler.table
    while core.engine.num_unfinished:
        core.step()
        to_come = np.zeros_like(table.outputs_S)
        for plan in core.scheduler._in_flight.values():
            current_R = table.is_current(plan.slot_R, plan.request_R, plan.epoch_R)
            to_come[plan.slot_R] += np.where(plan.samples_R & current_R, plan.num_drafts_R + 1, 0)
        in_use = table.number_S >= 0
        assert (to_come == table.outputs_S)[in_use].all()
    core.assert_idle()


def test_t04_a_staging_buffer_that_is_read_late(open_llm: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies to the device run when the host has long prepared the next step."""
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    prompts = [[5], [6, 7, 8], list(range(10, 40))]
    expected = [output.outputs[0].token_ids for output in open_llm().generate(prompts, params)]
    llm = open_llm(scheduling_depth=2, backend_options={"stream": "thread"}, max_num_seqs=4)
    backend = llm._engine._runner._backend
    original = backend.to_device

    def late(target: Any, source: Any, stream: Any) -> None:
        stream.launch(_wait_a_little)
        original(target, source, stream)

    monkeypatch.setattr(backend, "to_device", late)
    assert [output.outputs[0].token_ids for output in llm.generate(prompts, params)] == expected


def _wait_a_little() -> None:
    time.sleep(0.003)


@pytest.mark.parametrize("num_drafts", DRAFTS)
def test_t05_two_paths_that_both_free_a_request(fake: SimpleNamespace, num_drafts: int) -> None:
    """It is aborted while the step that ends it, or fails, is in flight; its blocks are shared with another."""
    for offset in OFFSETS:
        for fail_at in ((), (offset,), (offset + 1,)):
            core = make(fake, num_drafts=num_drafts, fail_at=fail_at)
            for _ in range(offset):
                core.step()
            for _ in range(2):
                core.take(core.engine.abort(AbortRequest(request_id="a")))
                core.scheduler.check()
            core.run()
            core.assert_idle()
            assert core.reason("a") in ("abort", "length", "error")
            assert fail_at or core.tokens("b") == alone(fake, "b")


@pytest.mark.parametrize("num_drafts", DRAFTS)
def test_t06_a_row_number_that_is_kept_over_a_gap(fake: SimpleNamespace, num_drafts: int) -> None:
    """Rows shift when a neighbour goes, and whoever sat out a step goes on from no row of it."""
    for offset in OFFSETS:
        core = make(fake, num_drafts=num_drafts, scheduling_policy="two-phase")
        for _ in range(offset):
            core.step()
        core.take(core.engine.abort(AbortRequest(request_id="a")))
        core.add("d", [50, 51], max_tokens=1)
        finish(fake, core, "b", "c")
        for before, plan in pairwise(core.runner.plans):
            rows = {(n, e): row for row, (n, e) in enumerate(zip(before.request_R, before.epoch_R, strict=True))}
            for number, epoch, source in zip(plan.request_R, plan.epoch_R, plan.remap_R.tolist(), strict=True):
                assert source in (-1, rows.get((number, epoch), -1))


@pytest.mark.parametrize("num_drafts", DRAFTS)
def test_t07_a_slot_that_is_taken_while_a_step_still_reads_it(fake: SimpleNamespace, num_drafts: int) -> None:
    for offset in range(10):
        core = fake.make_core(depth=2, max_num_seqs=2, num_drafts=num_drafts, block_size=4)
        Watch(core)
        stop = alone(fake, "a")[offset]
        core.add("a", PROMPTS["a"], max_tokens=10, stop_token_ids=(stop,))
        for name in ("b", "c"):
            core.add(name, PROMPTS[name], max_tokens=10)
        finish(fake, core, "b", "c")
        assert core.reason("a") in ("stop", "length")
        for before, plan in pairwise(core.runner.plans):
            holders = dict(zip(before.slot_R.tolist(), before.request_R.tolist(), strict=True))
            for slot, number in zip(plan.slot_R.tolist(), plan.request_R.tolist(), strict=True):
                assert holders.get(slot, number) == number, "two requests in one slot in steps in flight"


@pytest.mark.parametrize("num_drafts", DRAFTS)
@pytest.mark.parametrize("window", [1, 3, 6])
def test_t08_a_window_whose_blocks_go_back_early(fake: SimpleNamespace, num_drafts: int, window: int) -> None:
    """Rejected drafts make a row start earlier than was planned, so only settled tokens move the window."""
    for block_size in (1, 4):
        core = make(fake, num_drafts=num_drafts, windows=(None, window), block_size=block_size, prefix_caching=False)
        finish(fake, core)


def test_t10_a_prompt_that_fits_the_context_but_not_the_pool(fake: SimpleNamespace) -> None:
    core = make(fake, num_blocks=1 + 6)
    with pytest.raises(RequestError, match=r"40 tokens need 10 KV blocks of 4 tokens .* which has 6"):
        core.add("huge", list(range(36)), max_tokens=4)
    core.add("large", list(range(20)), max_tokens=4)  # all of the pool: it waits its turn and gets it
    finish(fake, core)
    assert core.reason("large") == "length"


@pytest.mark.parametrize("policy", ["fcfs", "two-phase", "priority"])
def test_t19_a_placeholder_that_outlives_its_step(fake: SimpleNamespace, policy: str) -> None:
    """Whatever gap comes, a row without a source has real tokens, and drafts that were made for its place."""
    for offset in OFFSETS:
        core = make(fake, num_drafts=3, scheduling_policy=policy, num_blocks=12, prefix_caching=False)
        for _ in range(offset):
            core.step()
        core.add("d", [50, 51, 52, 53, 54, 55, 56, 57, 58], max_tokens=2, priority=-1)
        finish(fake, core)
        for plan in core.runner.plans:
            assert plan.token_ids_T.min() >= 0
            assert plan.token_ids_T.max() < fake.vocab
            is_remapped_T = np.repeat(plan.remap_R >= 0, plan.query_len_R)
            assert not plan.token_ids_T[is_remapped_T].any()


def spoil(core: Any, handle: Any) -> None:
    """The forward of a step leaves garbage where it should have written."""
    plan, runner = handle.plan, core.runner
    for row, rejected in enumerate(handle.rejected):
        start = int(plan.start_R[row]) - rejected
        position_L = np.arange(start, start + int(plan.query_len_R[row]))
        for memory, table_RB in zip(runner.memories, plan.block_tables, strict=True):
            memory[table_RB[row][position_L // runner.block_size], position_L % runner.block_size] = GARBAGE


def ask_again(fake: SimpleNamespace, core: Any) -> None:
    """Canaries: the same requests are answered right, whatever is cached of the first ones."""
    for name, prompt in PROMPTS.items():
        core.updates[name] = []
        core.add(name, prompt, max_tokens=10)
    finish(fake, core)


@pytest.mark.parametrize("num_drafts", DRAFTS)
@pytest.mark.parametrize("depth", [1, 2])
def test_t21_blocks_of_a_failed_request_that_stay_in_the_cache(
    fake: SimpleNamespace, num_drafts: int, depth: int
) -> None:
    for offset in OFFSETS:
        core = make(fake, num_drafts=num_drafts, depth=depth, fail_at=[offset], windows=(None, 6))
        submit = core.runner.submit

        def spoiled(plan: Any, core: Any = core, submit: Any = submit) -> Any:
            handle = submit(plan)
            if plan.step_id in core.runner.fail_at:
                spoil(core, handle)
            return handle

        core.runner.submit = spoiled
        core.run()
        failed = [name for name in PROMPTS if core.reason(name) == "error"]
        assert failed or offset == 0 or offset >= len(core.runner.plans)
        core.runner.fail_at = frozenset()
        ask_again(fake, core)
        assert failed or core.kv.stats.hits > 0, "nothing was cached, so nothing could be wrong"


@pytest.mark.parametrize("num_drafts", DRAFTS)
def test_t21_blocks_of_an_aborted_request_that_stay_in_the_cache(fake: SimpleNamespace, num_drafts: int) -> None:
    """What it had in flight is never finished."""
    for offset in OFFSETS:
        core = make(fake, num_drafts=num_drafts)
        for _ in range(offset):
            core.step()
        for name in PROMPTS:
            core.take(core.engine.abort(AbortRequest(request_id=name)))
        if core.scheduler.total_inflight_tokens:
            spoil(core, core.runner.last)
        ask_again(fake, core)


@pytest.mark.parametrize("num_drafts", DRAFTS)
@pytest.mark.parametrize("name", PROMPTS)
def test_an_abort_at_any_step_gives_one_last_update(fake: SimpleNamespace, num_drafts: int, name: str) -> None:
    for offset in OFFSETS:
        core = make(fake, num_drafts=num_drafts)
        for _ in range(offset):
            core.step()
        aborted = core.take(core.engine.abort(AbortRequest(request_id=name)))
        core.run()
        core.assert_idle()
        assert core.reason(name) == ("abort" if aborted else "length")
        assert core.tokens(name) == alone(fake, name)[: len(core.tokens(name))]
        for other in set(PROMPTS) - {name}:
            assert (core.tokens(other), core.reason(other)) == (alone(fake, other), "length")
        assert core.scheduler.stats.num_wasted_rows <= (3 if num_drafts else 1)

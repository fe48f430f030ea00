"""Steps that decode in graphs give the tokens of the same steps without, on the CPU backend's replayed callables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.engine.decode_graphs import DecodeGraphs, graph_sizes
from isoinfer.llm import LLM
from isoinfer.sampling_params import SamplingParams

GRAPHS = {"graphs": "on"}
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
WARM = SamplingParams(temperature=0.9, top_k=40, seed=3, max_tokens=20, ignore_eos=True, repetition_penalty=1.2)

MORE: list[dict[str, Any]] = [
    {},
    {"max_num_batched_tokens": 7},
    {"max_num_seqs": 3},
    {"deterministic": True, "scheduling_depth": 2},
    {"scheduling_depth": 2, "max_num_seqs": 3},
]


@pytest.fixture(scope="module")
def prompts(tiny: SimpleNamespace) -> list[list[int]]:
    rng = np.random.default_rng(6)
    return [rng.integers(2, tiny.vocab, size).tolist() for size in (1, 15, 16, 17, 40, 3, 90, 31, 5, 8, 64)]


@pytest.fixture
def open_fresh(tiny: SimpleNamespace) -> Iterator[Callable[..., LLM]]:
    """An engine that nobody has used, so that no graph is captured yet."""
    opened: list[LLM] = []

    def open_(**more: Any) -> LLM:
        options = {"backend": "cpu", "dtype": "float32", "threads": 1, "max_model_len": 200, "max_num_seqs": 12}
        opened.append(LLM(tiny.path, **{**options, "backend_options": GRAPHS, **more}))
        return opened[-1]

    yield open_
    for llm in opened:
        llm.close()


def graphs_of(llm: LLM) -> DecodeGraphs:
    graphs = llm._engine._runner._graphs
    assert graphs is not None
    return graphs


def captured(llm: LLM) -> set[int]:
    return {size for size, decode in graphs_of(llm)._decodes.items() if decode.graph is not None}


def tokens(outputs: Any) -> list[tuple[int, ...]]:
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [output.outputs[0].token_ids for output in outputs]


def test_sizes_are_powers_then_multiples() -> None:
    assert graph_sizes(40, 64) == (1, 2, 4, 8, 16, 24, 32, 40)
    assert graph_sizes(5, 64) == (1, 2, 4, 5)
    assert graph_sizes(1, 64) == (1,)
    assert len(graph_sizes(256, 64)) == 35
    assert graph_sizes(256, 3) == (64, 128, 256)
    assert graph_sizes(8, 0) == ()


@given(max_rows=st.integers(1, 600), limit=st.integers(1, 80))
def test_sizes_are_few_ascending_and_reach_the_largest_step(max_rows: int, limit: int) -> None:
    sizes = graph_sizes(max_rows, limit)
    assert len(sizes) <= limit
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == max_rows
    if limit >= 80:
        assert all(after - before <= 8 for before, after in zip((0, *sizes), sizes, strict=False))


@pytest.mark.parametrize("stream", ["inline", "thread"])
@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("more", MORE, ids=str)
def test_tokens_are_those_without_graphs(
    open_llm: Callable[..., LLM], prompts: list[list[int]], stream: str, params: SamplingParams, more: dict[str, Any]
) -> None:
    llm = open_llm(backend_options={**GRAPHS, "stream": stream}, **more)
    assert tokens(llm.generate(prompts, params)) == tokens(open_llm().generate(prompts, params))
    assert captured(llm), "nothing ran in a graph"
    assert llm._engine.scheduler.kv_usage == 0


def test_rows_join_and_leave_and_abort(open_fresh: Callable[..., LLM], prompts: list[list[int]]) -> None:
    on, off = open_fresh(), open_fresh(enforce_eager=True)
    told = [run_schedule(llm, prompts) for llm in (on, off)]
    assert told[0] == told[1]
    assert len(captured(on)) > 2
    assert off._engine._runner._graphs is None


def run_schedule(llm: LLM, prompts: list[list[int]], every: int = 3, abort_after: int = 5) -> dict[str, Any]:
    """A request joins in every third step; each fourth one is aborted when it has said something."""
    said: dict[str, Any] = {}
    waiting = list(enumerate(prompts))
    for step in range(400):
        if waiting and step % every == 0:
            index, prompt = waiting.pop(0)
            params = SamplingParams(temperature=0, max_tokens=4 + 5 * (index % 4), ignore_eos=True)
            llm.submit(str(index), prompt, params)
        for output in llm.step():
            said[output.request_id] = output.outputs[0].token_ids
        for name in [name for name, ids in said.items() if int(name) % 4 == 3 and len(ids) >= abort_after]:
            llm.abort(name)
        if not waiting and not llm.num_unfinished:
            return said
    raise AssertionError("the requests never ended")


@settings(deadline=None, max_examples=12, database=None)
@given(data=st.data())
def test_any_schedule_gives_the_same_tokens(open_llm: Callable[..., LLM], data: st.DataObject) -> None:
    prompt = st.lists(st.integers(2, 95), min_size=1, max_size=40)
    prompts = data.draw(st.lists(prompt, min_size=1, max_size=9))
    every, abort_after = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 12))
    stream, depth = data.draw(st.sampled_from(["inline", "thread"])), data.draw(st.integers(1, 2))
    on = open_llm(backend_options={**GRAPHS, "stream": stream}, max_num_seqs=6, scheduling_depth=depth)
    assert run_schedule(on, prompts, every, abort_after) == run_schedule(open_llm(), prompts, every, abort_after)


def test_mixed_steps_and_prompt_logprobs_run_eagerly(
    open_fresh: Callable[..., LLM], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, eager = open_fresh(), open_fresh(enforce_eager=True)
    asked = []
    size_for = DecodeGraphs.size_for

    def spy(self: DecodeGraphs, plan: Any) -> int | None:
        asked.append((plan.num_tokens > plan.num_rows or plan.prompt_index_Q.size > 0, size_for(self, plan)))
        return asked[-1][1]

    monkeypatch.setattr(DecodeGraphs, "size_for", spy)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=3, prompt_logprobs=2)
    ours, theirs = llm.generate(prompts, params), eager.generate(prompts, params)
    assert {size is None for mixed, size in asked if mixed} == {True}
    assert {size is None for mixed, size in asked if not mixed} == {False}
    for a, b in zip(ours, theirs, strict=True):
        assert a.outputs[0].token_ids == b.outputs[0].token_ids
        for left, right in zip(a.prompt_logprobs[1:], b.prompt_logprobs[1:], strict=True):
            assert {t: left[t].logprob for t in left} == pytest.approx({t: right[t].logprob for t in right}, abs=1e-5)


def test_a_graph_s_inputs_stay_where_they_were(open_fresh: Callable[..., LLM], prompts: list[list[int]]) -> None:
    """The batch that was captured is the one that is replayed: nothing is planned again where nothing needs it."""
    llm = open_fresh()
    llm.generate(prompts[:5], GREEDY)
    before = {size: decode.batch for size, decode in graphs_of(llm)._decodes.items()}
    llm.generate(prompts[3:8], WARM)
    after = graphs_of(llm)._decodes
    assert all(after[size].batch is batch is after[size].first for size, batch in before.items())
    assert captured(llm) >= {8}


def test_padding_rows_write_to_scratch_and_to_nothing_else(
    open_fresh: Callable[..., LLM], prompts: list[list[int]]
) -> None:
    llm = open_fresh()
    graphs = graphs_of(llm)
    scratch, kv = graphs._config.scratch, graphs._kv
    for layer in kv.layers.values():
        layer.k_BKDSp.fill_(777.0)
        layer.v_BKSD.fill_(777.0)
    llm.generate(prompts[:5], GREEDY)
    untouched = [bool((layer.v_BKSD == 777.0).flatten(1).all(1)[0]) for layer in kv.layers.values()]
    assert untouched == [True] * len(untouched), "block 0 belongs to nobody"
    (first,) = scratch.first_blocks
    assert {len(layer.v_BKSD) for layer in kv.layers.values()} == {first + 1}
    written = [(layer.v_BKSD[first] != 777.0).any((0, 2)).tolist() for layer in kv.layers.values()]
    assert written == [[True] * 3 + [False] * 13] * len(written), "five rows in a graph of eight"


def test_a_capture_that_fails_is_told_and_the_steps_run_without(
    open_fresh: Callable[..., LLM], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, eager = open_fresh(), open_fresh(enforce_eager=True)
    calls = []

    def refuse(*args: Any, **more: Any) -> Any:
        calls.append(args)
        raise RuntimeError("not while capturing")

    monkeypatch.setattr(graphs_of(llm)._backend, "capture", refuse)
    with pytest.warns(UserWarning, match="a step of 2 rows cannot be captured.*RuntimeError: not while capturing"):
        said = tokens(llm.generate(prompts[:2], GREEDY))
    assert said == tokens(eager.generate(prompts[:2], GREEDY))
    assert tokens(llm.generate(prompts, GREEDY)) == tokens(eager.generate(prompts, GREEDY))
    assert len(calls) == 1, "it is not tried again and again"


def test_sizes_captured_before_one_failed_stay_in_use(
    open_fresh: Callable[..., LLM],
    prompts: list[list[int]],
    fake: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = open_fresh()
    llm.generate(prompts[:1], GREEDY)
    graphs = graphs_of(llm)
    monkeypatch.setattr(graphs, "_may_capture", False)
    assert [graphs.size_for(decodes(fake, rows)) for rows in (1, 2, 12, 13)] == [1, None, None, None]
    monkeypatch.setattr(graphs, "_may_capture", True)
    assert [graphs.size_for(decodes(fake, rows)) for rows in (1, 3, 9, 12, 13)] == [1, 4, 12, 12, None]


def decodes(fake: SimpleNamespace, rows: int, **changes: Any) -> Any:
    return fake.step_plan(**{"start": [3] * rows, "count": [1] * rows, **changes})


def test_steps_with_drafts_or_without_sampling_run_eagerly(
    open_fresh: Callable[..., LLM], fake: SimpleNamespace
) -> None:
    graphs = graphs_of(open_fresh())
    assert graphs.size_for(decodes(fake, 2, remap=[1, 0])) == 2
    assert graphs.size_for(fake.step_plan([3, 3], [2, 1], drafts=[1, 0])) is None
    assert graphs.size_for(decodes(fake, 2, remap=[1, 0], uncertain=[0, 1])) is None, "its slots depend on the device"
    assert graphs.size_for(decodes(fake, 2, samples=[True, False])) is None


class HostPlan:
    """A plan whose attention reads lengths from the host, as some devices' do."""

    def __init__(self, plan: Any, lengths: list[int]) -> None:
        self._plan, self.host_params = plan, {"lengths": lengths}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)


def test_a_replay_is_given_this_step_s_host_params(
    open_fresh: Callable[..., LLM], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = open_fresh()
    backend = graphs_of(llm)._backend
    plan_attention, capture, given = backend.plan_attention, backend.capture, []
    monkeypatch.setattr(
        backend,
        "plan_attention",
        lambda batch, stream: HostPlan(plan_attention(batch, stream), batch.kv_len_host_R.tolist()),
    )

    def spy(fn: Any, *args: Any, host_params: Any = ()) -> Any:
        assert tuple(host_params) == ("lengths",)
        graph = capture(fn, *args, host_params=host_params)
        return SimpleNamespace(replay=lambda params: (given.append(params["lengths"]), graph.replay(params)))

    monkeypatch.setattr(backend, "capture", spy)
    said = tokens(llm.generate(prompts[1:4], with_max(4)))
    assert given == [[16 + i, 17 + i, 18 + i, 1] for i in range(3)]
    monkeypatch.undo()
    assert said == tokens(open_fresh(enforce_eager=True).generate(prompts[1:4], with_max(4)))


def with_max(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def test_what_a_step_gave_outlives_the_next_step_s_logits(
    open_fresh: Callable[..., LLM], prompts: list[list[int]]
) -> None:
    """Results are copies, in stream order: not even overwriting the buffer at once changes them."""
    llm = open_fresh(backend_options={**GRAPHS, "stream": "thread"})
    eager = open_fresh(enforce_eager=True)
    runner, graphs = llm._engine._runner, graphs_of(llm)
    sample = runner.sample

    def spoil() -> None:
        graphs._logits_RV.fill_(float("nan"))

    def sample_and_spoil(handle: Any, plan: Any) -> None:
        sample(handle, plan)
        runner._stream.launch(spoil)

    runner.sample = sample_and_spoil
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=4)
    for a, b in zip(llm.generate(prompts[:4], params), eager.generate(prompts[:4], params), strict=True):
        assert a.outputs[0].token_ids == b.outputs[0].token_ids
        for left, right in zip(a.outputs[0].logprobs, b.outputs[0].logprobs, strict=True):
            assert {t: e.logprob for t, e in left.items()} == pytest.approx(
                {t: e.logprob for t, e in right.items()}, abs=1e-5
            )


def test_logits_that_nobody_sampled_are_not_overwritten(
    open_fresh: Callable[..., LLM], prompts: list[list[int]], fake: SimpleNamespace
) -> None:
    llm = open_fresh(scheduling_depth=2)
    runner, plan = llm._engine._runner, decodes(fake, 1, start=[0], tables=[[[1]]])
    runner.submit(plan)
    with pytest.raises(AssertionError, match="not sampled yet"):
        runner.submit(plan)
    runner.abandon()
    eager = open_fresh(enforce_eager=True)
    assert tokens(llm.generate(prompts[:3], GREEDY)) == tokens(eager.generate(prompts[:3], GREEDY))


def test_a_step_that_raises_in_a_graph_fails_its_requests_only(
    open_fresh: Callable[..., LLM], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = open_fresh(max_num_seqs=2)
    llm.generate(prompts[:2], GREEDY)
    good = tokens(llm.generate(prompts[:4], GREEDY))
    with monkeypatch.context() as patch:
        patch.setattr(graphs_of(llm), "_forward", SimpleNamespace(hidden=lambda *args: 1 / 0))
        outputs = llm.generate(prompts[:2], GREEDY)
    assert [output.error for output in outputs] == ["ZeroDivisionError: division by zero"] * 2
    assert tokens(llm.generate(prompts[:4], GREEDY)) == good


def test_the_start_up_report_says_whether_graphs_are_used(
    open_fresh: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(llm: LLM) -> list[str]:
        return [line for line in llm.describe() if line.startswith("graphs:")]

    assert lines(open_fresh()) == ["graphs: decode steps in 5 sizes up to 12 rows, captured at first use"]
    assert lines(open_fresh(enforce_eager=True)) == ["graphs: off (enforce_eager)"]
    assert lines(open_fresh(backend_options={})) == []
    monkeypatch.setattr("isoinfer.backends.cpu.kv.layout", scratchless)
    llm = open_fresh()
    assert lines(llm) == ["graphs: off (the backend's KV has no scratch block for padding rows)"]
    assert llm._engine._runner._graphs is None


def scratchless(specs: Any, num_scratch_blocks: int = 0) -> Any:
    from isoinfer.backends.interface import KVLayout

    return KVLayout(block_size=16, bytes_per_block=(2 * 2 * 2 * 16 * 16 * torch.float32.itemsize,))

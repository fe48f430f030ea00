"""After a prefix hit: an exact replay equals a cold run bit for bit, a bounded one a forward with narrower masks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from isoinfer.engine import assembly

WINDOW, RING_LAYERS, BLOCK, VOCAB = 8, 2, 16, 64
EXACT = RING_LAYERS * (WINDOW - 1)
PROMPTS = [np.random.default_rng(5).integers(0, VOCAB, size).tolist() for size in (5, 21, 40, 65)]
"""The last one leaves one token after whole blocks, which sees all of its window replayed."""


@pytest.fixture(scope="session")
def expected(open_core: Any) -> Callable[[str], list[Any]]:
    """What each model says to PROMPTS with its windows in blocks."""
    return cache(lambda name: open_core(name, window_kv="paged").ask(PROMPTS))


@pytest.mark.parametrize("name", ["qwen2", "gpt-oss"])
@pytest.mark.parametrize("how", [{}, {"budget": 5}, {"budget": 19, "depth": 2}, {"drafts": "ngram:2"}], ids=str)
def test_exact_replay_equals_a_cold_run(open_core: Any, expected: Any, name: str, how: dict[str, Any]) -> None:
    core = open_core(name, **how)
    assert core.ask(PROMPTS) == expected(name)
    again = core.ask(PROMPTS)
    assert again == expected(name)
    # Whole blocks before the last token; one that is no longer than the replay is none, and what is replayed counts
    # as computed.
    whole = [(len(prompt) - 1) // BLOCK * BLOCK for prompt in PROMPTS]
    assert [answer.cached for answer in again] == [max(hit - EXACT, 0) for hit in whole]


def test_one_token_less_would_not_do(open_core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The length of the exact replay is not longer than it must be, and the test above would see a shorter one."""
    exact = assembly.replay_length
    monkeypatch.setattr(assembly, "replay_length", lambda specs, mode: exact(specs, mode) - 1)
    core = open_core("qwen2")
    cold, hot = core.ask(PROMPTS), core.ask(PROMPTS)
    assert hot[3].cached == 64 - EXACT + 1
    assert [one == other for one, other in zip(cold, hot, strict=True)] == [True, True, True, False]


def test_without_replay_a_hit_is_a_miss(open_core: Any, expected: Any) -> None:
    core = open_core("qwen2", replay="off")
    assert core.ask(PROMPTS) == core.ask(PROMPTS) == expected("qwen2")
    assert not any(answer.cached for answer in core.answers.values())


def test_bounded_replay_computes_one_window_again_and_differs_from_a_cold_run(open_core: Any, expected: Any) -> None:
    core = open_core("qwen2", replay="bounded")
    assert core.ask(PROMPTS) == expected("qwen2")
    again = core.ask(PROMPTS)
    assert [answer.cached for answer in again] == [0, BLOCK - WINDOW, 2 * BLOCK - WINDOW, 4 * BLOCK - WINDOW]
    assert again[0] == expected("qwen2")[0]
    assert again[3] != expected("qwen2")[3]


class Masked(transformers.DynamicCache):
    """For layers with all their past, K and V of a cold run before `hit`; for those with a window, nothing."""

    def __init__(self, cold: Any, hit: int, first: int, is_full: Sequence[bool]) -> None:
        super().__init__()
        self.cold, self.hit, self.first, self.is_full = cold, hit, first, is_full

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        if not self.is_full[layer_idx]:
            return key, value
        before = self.cold.layers[layer_idx]
        new = self.hit - self.first
        return tuple(
            torch.cat((old[:, :, : self.hit], mine[:, :, new:]), dim=2)
            for old, mine in ((before.keys, key), (before.values, value))
        )


def masked_logits(oracle: Any, tokens: Sequence[int], hit: int) -> torch.Tensor:
    """Of the tokens from hit - WINDOW on, where window layers see nothing before that: by transformers and masks."""
    first, ids = hit - WINDOW, torch.tensor([list(tokens)])
    is_full = [kind == "full_attention" for kind in oracle.config.layer_types]
    keyword = (
        "cache" if "cache" in inspect.signature(oracle.forward).parameters else "past_key_values"
    )  # the older name
    with torch.no_grad():
        cold = transformers.DynamicCache()
        oracle(ids, use_cache=True, **{keyword: cold})
        query, key = torch.arange(first, len(tokens))[:, None], torch.arange(len(tokens))[None, :]
        full = torch.where(key <= query, 0.0, -torch.inf)[None, None]
        seen = (key <= query) & (key > query - WINDOW)
        masks = {"full_attention": full, "sliding_attention": torch.where(seen, 0.0, -torch.inf)[None, None, :, first:]}
        out = oracle(
            ids[:, first:],
            attention_mask=masks,
            position_ids=query.T,
            use_cache=True,
            **{keyword: Masked(cold, hit, first, is_full)},
        )
    logits: torch.Tensor = out.logits[0]
    return logits


@pytest.mark.parametrize("name", ["qwen2", "gpt-oss"])
@pytest.mark.parametrize("budget", [64, 5])
def test_bounded_replay_equals_a_masked_forward(models: Any, open_core: Any, name: str, budget: int) -> None:
    """Also while the answer grows, until well after the window has passed the floor."""
    core, prompt = open_core(name, replay="bounded", budget=budget), PROMPTS[2]
    core.ask([prompt[:33]], max_tokens=1)
    (answer,) = core.ask([prompt], max_tokens=3 * WINDOW)
    hit = answer.cached + WINDOW
    assert hit == 2 * BLOCK
    tokens = prompt + answer.tokens
    logits_TV = masked_logits(models[name].oracle, tokens, hit)
    logprobs_TV = logits_TV.log_softmax(-1)[len(prompt) - 1 - (hit - WINDOW) : -1]
    assert logprobs_TV.argmax(-1).tolist() == answer.tokens
    best = torch.from_numpy(np.array(answer.logprobs))
    torch.testing.assert_close(logprobs_TV.topk(4).values, best, atol=1e-4, rtol=0.0)

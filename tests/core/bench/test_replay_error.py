"""Figures of an engine that says what it is told: the divergence of two known distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from isoinfer.bench.replay_error import ReplayMeter
from isoinfer.engine.messages import TokenLogprobs, TokenUpdate
from isoinfer.errors import StepError

COLD, HOT = [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]


def logprobs(*rows: list[float]) -> TokenLogprobs:
    """Best first, as an engine gives them."""
    order = np.argsort(-np.array(rows), axis=1, kind="stable")
    values = np.take_along_axis(np.log(np.array(rows, dtype=np.float32)), order, axis=1)
    count = len(rows)
    return TokenLogprobs(
        logprob_T=np.zeros(count, np.float32),
        rank_T=np.ones(count, np.int32),
        top_ids_TX=order.astype(np.int32),
        top_logprobs_TX=values.astype(np.float32),
    )


class ScriptedEngine:
    """After a hit of 5 tokens the first place differs from a cold run; the places come in two updates."""

    def __init__(self, cached: int = 5, error: str = "") -> None:
        self.added, self._updates, self._cached, self._error = [], [], cached, error

    def add(self, request):
        self.added.append(request)
        cold = not request.prefix_caching
        asks = request.sampling.num_prompt_logprobs >= 0
        rows = [COLD if cold else HOT, COLD] if asks else []
        updates = [TokenUpdate(request_id="x", prompt_logprobs=logprobs(row)) for row in rows]
        reason = "error" if self._error else "length"
        cached = 0 if cold else self._cached
        self._updates = [
            *updates,
            TokenUpdate(request_id="x", finish_reason=reason, error=self._error, num_cached_tokens=cached),
        ]

    @property
    def is_idle(self):
        return not self._updates

    def step(self):
        return [self._updates.pop(0)]


def measure(engine, *prompts):
    return list(ReplayMeter(engine, vocab_size=3, block_size=4, num_places=2).measure(prompts))


def test_divergence_is_of_the_cold_distribution_from_the_one_after_the_hit():
    engine = ScriptedEngine()
    (error,) = measure(engine, range(13))
    kl = 0.5 * math.log(0.5 / 0.25) + 0.25 * math.log(0.25 / 0.5)
    assert error.kl == pytest.approx(kl / 2, rel=1e-6)
    assert error.kl_max == pytest.approx(kl, rel=1e-6)
    assert (error.agreement, error.num_cached, error.num_places) == (0.5, 5, 2)
    warm, hot, cold = engine.added
    assert [request.prompt_token_ids.size for request in engine.added] == [8, 8 + 1 + 2, 8 + 1 + 2]
    assert [request.prefix_caching for request in engine.added] == [True, True, False]
    assert len({request.cache_salt for request in engine.added}) == 1
    assert (warm.sampling.num_prompt_logprobs, hot.sampling.num_prompt_logprobs) == (-1, 3)
    assert hot.sampling.prompt_logprobs_start == cold.sampling.prompt_logprobs_start == 9


def test_prompts_share_nothing_and_those_that_are_too_short_say_so():
    engine = ScriptedEngine()
    assert [error is None for error in measure(engine, range(6), range(7), range(9))] == [True, False, False]
    assert [request.prompt_token_ids.size for request in engine.added] == [4, 7, 7] * 2
    assert len({request.cache_salt for request in engine.added}) == 2
    assert measure(ScriptedEngine(cached=0), range(13)) == [None]


def test_a_step_that_fails_is_not_a_figure():
    with pytest.raises(StepError, match="no memory"):
        measure(ScriptedEngine(error="no memory"), range(13))

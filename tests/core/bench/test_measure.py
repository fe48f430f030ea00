"""Figures of a run whose every moment is known."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from isoinfer.bench.measure import measure
from isoinfer.engine.messages import AddRequest, CoreSampling, TokenUpdate
from isoinfer.engine.scheduler import SchedulerStats
from isoinfer.errors import StepError

REQUESTS = [
    AddRequest(
        request_id=name,
        prompt_token_ids=np.arange(size, dtype=np.int32),
        sampling=CoreSampling(max_tokens=3, seed=0),
    )
    for name, size in (("a", 5), ("b", 2))
]


class ScriptedEngine:
    """Takes a second a step, and gives what the script says."""

    def __init__(self, *steps: list[TokenUpdate], before: int = 10) -> None:
        self.clock, self.added, self._steps = 100.0, [], list(steps)
        stats = SchedulerStats(num_steps=before, num_preemptions=2, num_draft_tokens=7)
        self.scheduler = SimpleNamespace(stats=stats, kv_usage=0.0)

    def add(self, request):
        self.added.append(request)

    @property
    def is_idle(self):
        return not self._steps

    def step(self):
        self.clock += 1
        self.scheduler.stats.num_steps += 1
        self.scheduler.kv_usage += 0.25
        return self._steps.pop(0)


def gives(name, *tokens, end=""):
    return TokenUpdate(request_id=name, token_ids=tokens, finish_reason=end)


def test_every_figure():
    engine = ScriptedEngine(
        [], [gives("a", 1)], [gives("a", 2), gives("b", 7, 8, end="length")], [gives("a", 3, end="length")]
    )
    seen = []
    run = measure(engine, REQUESTS, now=lambda: engine.clock, show=lambda *done: seen.append(done))
    assert engine.added == REQUESTS
    assert seen == [(0, 0), (0, 1), (1, 4), (2, 5)]
    figures = run.figures()
    assert figures["ttft_ms"] == {"mean": 2500, "p50": 2500, "p90": pytest.approx(2900), "p99": pytest.approx(2990)}
    assert figures["tpot_ms"]["mean"] == 500  # a: two seconds for two more tokens; b: none for one
    assert figures["e2el_ms"]["mean"] == 3500
    assert {name: value for name, value in figures.items() if not name.endswith("_ms")} == {
        "requests": 2,
        "prompt_tokens": 7,
        "output_tokens": 5,
        "seconds": 4.0,
        "requests_per_s": 0.5,
        "output_tokens_per_s": 1.25,
        "total_tokens_per_s": 3.0,
        "rounds": 4,
        "preemptions": 0,
        "wasted_rows": 0,
        "draft_tokens": 0,
        "accepted_tokens": 0,
        "kv_usage_mean": 0.625,
        "kv_usage_max": 1.0,
    }


def test_a_first_token_at_the_very_start_counts():
    engine = ScriptedEngine([gives("a", 1)], [gives("a", 2, end="length")])
    moments = iter([0.0, 0.0, 5.0, 5.0])
    run = measure(engine, REQUESTS[:1], now=lambda: next(moments))
    assert (run.requests[0].first, run.requests[0].last) == (0.0, 5.0)


def test_no_requests_are_no_error():
    run = measure(ScriptedEngine(), [])
    assert run.figures()["tpot_ms"] == {}


def test_a_failed_request_ends_the_run():
    engine = ScriptedEngine([TokenUpdate(request_id="a", finish_reason="error", error="no memory")])
    with pytest.raises(StepError, match="request a failed: no memory"):
        measure(engine, REQUESTS)

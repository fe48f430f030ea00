"""Runs a request mix through an engine and measures it. Words as in vLLM's benchmarks: TTFT, TPOT, E2EL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from isoinfer.errors import StepError

if TYPE_CHECKING:
    from isoinfer.engine.engine import Engine
    from isoinfer.engine.messages import AddRequest
    from isoinfer.engine.scheduler import SchedulerStats

PERCENTILES = (50, 90, 99)


@dataclass(slots=True)
class Times:
    """Of one request: when its first and its last token came, in seconds from the start, and how many."""

    first: float = 0.0
    last: float = 0.0
    num_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the scheduler counted during a run. `draft_tokens` were checked, `accepted_tokens` of them were right."""

    rounds: int
    preemptions: int
    wasted_rows: int
    draft_tokens: int
    accepted_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a mix. `kv_usage`: share of KV blocks that requests own, after each step."""

    seconds: float
    num_prompt_tokens: int
    requests: Sequence[Times]
    kv_usage: Sequence[float]
    counts: Counts

    @property
    def num_output_tokens(self) -> int:
        """Tokens that were generated."""
        return sum(times.num_tokens for times in self.requests)

    def figures(self) -> dict[str, Any]:
        """All of it as numbers with units in their names."""
        seconds, outputs = max(self.seconds, 1e-9), self.num_output_tokens
        return {
            "requests": len(self.requests),
            "prompt_tokens": self.num_prompt_tokens,
            "output_tokens": outputs,
            "seconds": self.seconds,
            "requests_per_s": len(self.requests) / seconds,
            "output_tokens_per_s": outputs / seconds,
            "total_tokens_per_s": (outputs + self.num_prompt_tokens) / seconds,
            "ttft_ms": _spread([1e3 * times.first for times in self.requests]),
            "tpot_ms": _spread(
                [
                    1e3 * (times.last - times.first) / (times.num_tokens - 1)
                    for times in self.requests
                    if times.num_tokens > 1
                ]
            ),
            "e2el_ms": _spread([1e3 * times.last for times in self.requests]),
            **asdict(self.counts),
            "kv_usage_mean": float(np.mean(self.kv_usage)) if self.kv_usage else 0.0,
            "kv_usage_max": max(self.kv_usage, default=0.0),
        }


def measure(
    engine: Engine,
    requests: Iterable[AddRequest],
    *,
    now: Callable[[], float] = time.perf_counter,
    show: Callable[[int, int], None] = lambda done, tokens: None,
) -> Run:
    """Add all requests, run the engine until it is idle. `now`: the clock to measure by; `show(done, tokens)`
    is called after each step. StepError if a request fails: what is left would measure something else."""
    follow = _Follower(now())
    before = replace(engine.scheduler.stats)
    num_prompt_tokens = 0
    for request in requests:
        engine.add(request)
        follow.requests[request.request_id] = Times()
        num_prompt_tokens += request.prompt_token_ids.size
    kv_usage = []
    while not engine.is_idle:
        updates = engine.step()
        follow.take(updates, now())
        kv_usage.append(engine.scheduler.kv_usage)
        show(follow.num_finished, follow.num_tokens)
    return Run(
        seconds=now() - follow.started,
        num_prompt_tokens=num_prompt_tokens,
        requests=tuple(follow.requests.values()),
        kv_usage=kv_usage,
        counts=_counts(before, engine.scheduler.stats),
    )


@dataclass(slots=True)
class _Follower:
    started: float
    requests: dict[str, Times] = field(default_factory=dict)
    num_finished: int = 0
    num_tokens: int = 0

    def take(self, updates: Iterable[Any], moment: float) -> None:
        for update in updates:
            if update.error:
                raise StepError(f"request {update.request_id} failed: {update.error}")
            times = self.requests[update.request_id]
            if update.token_ids:
                times.last = moment - self.started
                times.first = times.first if times.num_tokens else times.last
                times.num_tokens += len(update.token_ids)
                self.num_tokens += len(update.token_ids)
            self.num_finished += bool(update.finish_reason)


def _counts(before: SchedulerStats, after: SchedulerStats) -> Counts:
    return Counts(
        rounds=after.num_steps - before.num_steps,
        preemptions=after.num_preemptions - before.num_preemptions,
        wasted_rows=after.num_wasted_rows - before.num_wasted_rows,
        draft_tokens=after.num_draft_tokens - before.num_draft_tokens,
        accepted_tokens=after.num_accepted_tokens - before.num_accepted_tokens,
    )


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    named = {f"p{p}": float(value) for p, value in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True)}
    return {"mean": float(np.mean(values)), **named}

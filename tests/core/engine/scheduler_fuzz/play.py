"""One engine on a simulated device under random use, and what it may and may not do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from isoinfer.config import CacheConfig, EngineConfig, SchedulerConfig
from isoinfer.engine.assembly import Parts, assemble_engine
from isoinfer.engine.engine import Engine
from isoinfer.engine.messages import AbortRequest, AddRequest, TokenUpdate

from .load import EOS, Job, Setup
from .oracle import Oracle, sim_backend

ENDS = ("stop", "length")


class Tripwire:
    """A runner that raises KeyboardInterrupt once where it is told to: just before or after its own work."""

    def __init__(self, runner: Any) -> None:
        self.runner, self.armed = runner, ("", False)

    def __getattr__(self, name: str) -> Any:
        method, (where, after) = getattr(self.runner, name), self.armed
        if name != where:
            return method

        def trip(*args: Any) -> None:
            self.armed = ("", False)
            if after:
                method(*args)
            raise KeyboardInterrupt

        return trip


class Truth:
    """What a job says alone, as far as somebody said it: computed once for both engines."""

    def __init__(self, oracle: Oracle, job: Job, max_len: int) -> None:
        self._oracle, self.job, self.sampling = oracle, job, job.sampling
        self.prompt = job.prompt(max_len)
        self.limit = min(self.sampling.max_tokens, max_len - len(self.prompt))
        self._said: list[int] = []
        self._logprobs: list[float] = []
        self._prompt_logprobs: list[float] | None = None

    def check(self, output: list[int], reason: str, logprobs: list[float]) -> None:
        """`output` and its log-probabilities are right, and `reason` is why it ends."""
        if output[: len(self._said)] != self._said[: len(output)] or len(output) > len(self._said):
            right, self._logprobs = self._oracle.tokens([*self.prompt, *output], len(self.prompt), self.sampling)
            assert output == right, f"said {output}, but right after the true history is {right}"
            self._said = output
        assert logprobs == (self._logprobs[: len(output)] if self.sampling.num_logprobs >= 0 else [])
        ends = [self._end(i + 1, token) for i, token in enumerate(output)]
        right_end = reason if reason in ENDS else ""
        assert ends == [""] * (len(ends) - 1) + [right_end][: len(ends)], f"{reason}, but tokens end it as {ends}"

    def check_prompt(self, logprobs: list[float], *, complete: bool) -> None:
        """Log-probabilities of the prompt are right: all of them if it is `complete`."""
        if self.sampling.num_prompt_logprobs < 0 or len(self.prompt) == 1:
            assert logprobs == []
            return
        if self._prompt_logprobs is None:
            self._prompt_logprobs = self._oracle.prompt_logprobs(self.prompt)
        assert logprobs == self._prompt_logprobs[: None if complete else len(logprobs)]

    def _end(self, count: int, token: int) -> str:
        if count > self.sampling.min_tokens and token in self.sampling.stop_token_ids:
            return "stop"
        return "length" if count == self.limit else ""


@dataclass(slots=True, kw_only=True, eq=False)
class Stream:
    """What came out of one engine for one request."""

    truth: Truth
    number: int
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    num_cached: int = 0
    reason: str = ""

    @property
    def history(self) -> list[int]:
        return [*self.truth.prompt, *self.output]

    def take(self, update: TokenUpdate) -> None:
        assert not self.reason, f"an update after the last one ({self.reason}): {update}"
        sampling, count = self.truth.sampling, len(update.token_ids)
        if update.prompt_logprobs is not None:
            assert update.prompt_logprobs_start == len(self.prompt_logprobs) + 1
            assert update.prompt_logprobs.top_ids_TX.shape[1] == sampling.num_prompt_logprobs
            self.prompt_logprobs += update.prompt_logprobs.logprob_T.tolist()
        if update.logprobs is not None:
            assert update.logprobs.top_ids_TX.shape == (count, sampling.num_logprobs)
            self.logprobs += update.logprobs.logprob_T.tolist()
        self.output += update.token_ids
        self.reason = update.finish_reason
        assert update.stop_token == (self.output[-1] if self.reason == "stop" else -1)
        assert bool(update.error) == (self.reason == "error")
        if self.reason:
            self.truth.check(self.output, self.reason, self.logprobs)
            self.truth.check_prompt(self.prompt_logprobs, complete=bool(self.output))


class Play:
    """One engine, the streams of its requests, and what it may and may not do."""

    def __init__(self, setup: Setup, depth: int) -> None:
        options = dict(setup.model) | dict(setup.device)
        self.backend = sim_backend(
            block_size=setup.block_size, eos_token=EOS, host_us=0, fail_rate=setup.fail_rate, **options
        )
        self.setup, self.depth = setup, depth
        spec = setup.spec
        parts = Parts(backend=self.backend, spec=spec, forward=self.backend.bind_model(spec), bind=self.backend.bind)
        config = EngineConfig(
            model="sim",
            backend=self.backend,
            speculative=setup.speculative,
            cache=CacheConfig(enable_prefix_caching=setup.prefix_caching),
            scheduler=SchedulerConfig(
                max_num_seqs=setup.max_num_seqs,
                max_num_batched_tokens=setup.budget,
                scheduling_policy=setup.policy,
                scheduling_depth=depth,
                long_prefill_token_threshold=setup.threshold,
                check_invariants=True,
            ),
        )
        self.engine: Engine = assemble_engine(config, parts, setup.memory(depth, int(options["graphs"] == "on")))
        self.scheduler = self.engine.scheduler
        self.runner = self.engine._runner = Tripwire(self.engine._runner)
        self.streams: dict[str, Stream] = {}
        self.ended: list[Stream] = []
        self.wasted: Counter[int] = Counter()
        self.num_idle = 0
        self._count_wasted()

    def _count_wasted(self) -> None:
        settle = self.scheduler.settle

        def counting(plan: Any, result: Any) -> Any:
            current_R = self.scheduler.table.is_current(plan.slot_R, plan.request_R, plan.epoch_R)
            self.wasted.update(plan.request_R[~current_R].tolist())
            return settle(plan, result)

        self.scheduler.settle = counting

    def add(self, name: str, truth: Truth) -> None:
        job = truth.job
        self.engine.add(
            AddRequest(
                request_id=name,
                prompt_token_ids=np.array(truth.prompt, dtype=np.int32),
                sampling=truth.sampling,
                priority=job.priority,
                cache_salt=job.salt,
                prefix_caching=job.prefix_caching,
            )
        )
        self.streams[name] = Stream(truth=truth, number=self.scheduler.residents.by_id[name].number)

    def abort(self, name: str) -> None:
        self._take(self.engine.abort(AbortRequest(request_id=name)))
        self.scheduler.check()
        assert name not in self.streams, "an abort is the end"

    def step(self) -> None:
        unfinished, num_steps = self.engine.num_unfinished, self.scheduler.stats.num_steps
        self._take(self.engine.step())
        is_idle = bool(unfinished) and self.scheduler.stats.num_steps == num_steps
        self.num_idle = self.num_idle + 1 if is_idle else 0
        assert self.num_idle < self.depth, "requests wait, and nothing is computed"
        in_flight = sum(plan.num_tokens for plan, _ in self.engine._in_flight)
        assert self.scheduler.total_inflight_tokens == in_flight
        assert in_flight == 0 or self.depth > 1

    def interrupt(self, where: str, *, after: bool) -> bool:
        """A step that is interrupted, if it comes to that place: whether it was."""
        self.runner.armed = (where, after)
        try:
            self.step()
        except KeyboardInterrupt:
            assert self.scheduler.total_inflight_tokens == 0
            self.scheduler.check()
            return True
        self.runner.armed = ("", False)
        return False

    def drain(self) -> None:
        """Run to the end within the rounds that progress guarantees; nothing is left."""
        # The first request computes at least one token in every step, or at depth 2 in every second one when KV is
        # short; one that goes before it may make it start again, and a step of prefill may come between.
        work = sum(len(s.truth.prompt) + s.truth.limit for s in self.streams.values())
        slow = (2 if self.setup.policy == "two-phase" else 1) * (3 if self.setup.policy == "priority" else 1)
        bound = 13 + work * self.depth * slow
        while self.engine.num_unfinished:
            assert bound, "requests do not come to an end"
            bound -= 1
            self.step()
        self.step()  # what is in flight for nobody
        assert self.engine.is_idle
        assert not self.streams, "a request ended without saying so"
        self._assert_nothing_is_left()

    def _assert_nothing_is_left(self) -> None:
        scheduler, kv = self.scheduler, self.scheduler._kv
        scheduler.check()
        assert scheduler.num_running == scheduler.num_unfinished == scheduler.total_inflight_tokens == 0
        assert kv.usage == 0.0
        for group in range(kv.num_groups):
            assert kv.num_pending(group) == 0
            assert kv.num_free(group) == kv._groups[group].pool.num_usable
        assert scheduler.residents.slots.num_free == scheduler.table.number_S.size

    def _take(self, updates: Sequence[TokenUpdate]) -> None:
        for update in updates:
            assert update.request_id in self.streams, f"an update of a request that is not there: {update}"
            stream = self.streams[update.request_id]
            if update.num_cached_tokens != stream.num_cached:
                self._check_cached(stream, update.num_cached_tokens)
            stream.take(update)
            if stream.reason:
                del self.streams[update.request_id]
                self.ended.append(stream)
                assert stream.reason != "error" or self.setup.fail_rate

    def _check_cached(self, stream: Stream, num: int) -> None:
        """What a request found in the cache, somebody with the same salt has said before."""
        stream.num_cached = num
        job, history = stream.truth.job, stream.history
        assert num % self.setup.block_size == 0
        assert num < len(history)
        assert num == 0 or (self.setup.prefix_caching and job.prefix_caching)
        others = [other for other in (*self.ended, *self.streams.values()) if other.truth.job.salt == job.salt]
        if not self.scheduler.stats.num_preemptions:
            others.remove(stream)
        assert num == 0 or any(other.history[:num] == history[:num] for other in others), "KV of nobody is shared"

    def check_wasted(self) -> None:
        """At most one row of a request is computed in vain, and only where that could not be known."""
        speculates = self.setup.speculative is not None
        for stream in self.ended:
            may_waste = self.depth > 1 and (stream.reason != "length" or speculates)
            assert self.wasted[stream.number] <= may_waste, f"{stream.reason} wastes more than it must"
        assert self.wasted.total() == self.scheduler.stats.num_wasted_rows

    def tally(self) -> dict[str, int]:
        """What happened, for a report and so that nothing goes untested unseen."""
        stats, kv = self.scheduler.stats, self.scheduler._kv.stats
        return {
            "rounds": stats.num_steps,
            "requests": len(self.ended),
            "tokens": stats.num_scheduled_tokens,
            "preemptions": stats.num_preemptions,
            "failed steps": stats.num_failed_steps,
            "wasted rows": stats.num_wasted_rows,
            "drafts": stats.num_draft_tokens,
            "accepted drafts": stats.num_accepted_tokens,
            "cached tokens": kv.hits,
            "evictions": kv.evictions,
            "waits for lengths": self.runner.num_host_length_waits,
            **Counter(f"ends by {stream.reason}" for stream in self.ended),
        }

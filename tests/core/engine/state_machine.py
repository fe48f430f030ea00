"""Whole engines under random use, on a simulated device: the same requests at depth 1 and at depth 2.

Nothing is faked but the device: its tokens are a hash of the true history, so that any mix-up of block, slot, row,
position or setting changes them or is refused, and its queue runs late. Each request must say what it says alone
(`Oracle`), whatever happens around it, and nothing may be left when nobody is there any more.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from isoinfer.backends.interface import KVSpec, ModelSpec
from isoinfer.config import SCHEDULING_POLICIES, CacheConfig, EngineConfig, SchedulerConfig
from isoinfer.engine.assembly import Parts, assemble_engine
from isoinfer.engine.engine import Engine
from isoinfer.engine.memory_plan import GroupPlan, MemoryPlan
from isoinfer.engine.messages import AbortRequest, AddRequest, CoreSampling, TokenUpdate
from isoinfer.speculation.config import SpeculativeConfig

VOCAB, EOS = 40, 2
MAX_LEN = {1: 40, 4: 56, 16: 96, 128: 300}
"""Longest request by block size."""
DEPTHS = (1, 2)
ENDS = ("stop", "length")
FAMILIES = [[Random(family).randrange(VOCAB) for _ in range(max(MAX_LEN.values()))] for family in range(2)]
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {},
    "cut": {"top_k": 3, "top_p": 0.9, "temperature": 1.3},
    "penalized": {"presence_penalty": 3.0, "frequency_penalty": 1.0, "repetition_penalty": 1.5},
    "greedy-penalized": {"temperature": 0.0, "presence_penalty": 4.0},
    "biased": {"bias_token_ids": (3, 7), "bias_values": (9.0, 8.5)},
    "bad-words": {"bad_words": ((7,), (3, 9), (11, 12, 13))},
    "allowed": {"allowed_token_ids": tuple(range(0, VOCAB, 2))},
}
"""Settings of requests, by a name that says more than they do when an example fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything about engine and device. `room`: size of the pools, in requests of the greatest length."""

    block_size: int
    windows: tuple[int | None, ...]
    room: float
    max_num_seqs: int
    budget: int
    threshold: int
    policy: str
    prefix_caching: bool
    speculative: SpeculativeConfig | None
    model: tuple[tuple[str, int], ...]
    device: tuple[tuple[str, Any], ...]
    fail_rate: float

    @property
    def max_len(self) -> int:
        return MAX_LEN[self.block_size]

    @property
    def spec(self) -> ModelSpec:
        groups = tuple(
            KVSpec(name=f"window-{window}", layers=(i,), num_kv_heads=1, head_dim=1, dtype="float32", window=window)
            for i, window in enumerate(self.windows)
        )
        return ModelSpec(
            architecture="Sim",
            kv_specs=groups,
            flops_per_token=1,
            bytes_per_token=1,
            weight_bytes=1,
            num_layers=len(groups),
            vocab_size=VOCAB,
            hidden_size=1,
            max_position=max(MAX_LEN.values()),
        )

    def memory(self, depth: int, num_scratch_blocks: int) -> MemoryPlan:
        """Pools of `room` times what one request needs."""
        columns, step_tokens = -(-self.max_len // self.block_size), depth * self.budget
        groups = []
        for spec in self.spec.kv_specs:
            seen = columns if spec.window is None else (spec.window - 1 + step_tokens - 2) // self.block_size + 2
            usable = -int(-self.room * min(columns, seen) // 1)
            groups.append(GroupPlan(name=spec.name, num_layers=1, num_blocks=1 + usable, bytes_per_block=1))
        return MemoryPlan(
            groups=tuple(groups),
            block_size=self.block_size,
            max_model_len=self.max_len,
            num_scratch_blocks=num_scratch_blocks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request as it is drawn. `length` and `shared` of it in percent: of the longest, and of itself."""

    family: int
    length: int
    shared: int
    own: int
    kind: str
    max_tokens: int
    min_tokens: int
    seed: int
    stops: bool
    priority: int
    salt: str | None
    prefix_caching: bool
    num_logprobs: int
    num_prompt_logprobs: int

    def prompt(self, max_len: int) -> list[int]:
        family, size = FAMILIES[self.family], max(1, (max_len - 1) * self.length // 100)
        shared = size * self.shared // 100
        return family[:shared] + [(token + 1 + self.own) % VOCAB for token in family[shared:size]]

    @property
    def sampling(self) -> CoreSampling:
        return CoreSampling(
            max_tokens=self.max_tokens,
            min_tokens=min(self.min_tokens, self.max_tokens),
            seed=self.seed,
            stop_token_ids=(EOS, 17) if self.stops else (),
            num_logprobs=self.num_logprobs,
            num_prompt_logprobs=self.num_prompt_logprobs,
            **KINDS[self.kind],
        )


def one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


SPECULATIVE = st.one_of(
    st.none(),
    st.builds(
        SpeculativeConfig,
        method=one_of("ngram", "suffix"),
        num_drafts=one_of(1, 3, 5),
        min_match=one_of(1, 2),
        max_match=one_of(2, 8),
    ),
)
SETUPS = st.sampled_from(sorted(MAX_LEN)).flatmap(
    lambda block_size: st.builds(
        Setup,
        block_size=st.just(block_size),
        windows=one_of((None,), (None, 3), (None, 9, 20), (5,), (None, 150)),
        room=one_of(1.05, 1.3, 2.5, 8),
        max_num_seqs=st.integers(1, 6),
        budget=one_of(1, 2, 5, 16, 48) if block_size < 128 else one_of(20, 90, 128, 300),
        threshold=one_of(0, 0, 3),
        policy=st.sampled_from(SCHEDULING_POLICIES),
        prefix_caching=one_of(True, True, True, False),
        speculative=SPECULATIVE,
        model=st.builds(
            lambda *values: tuple(zip(("layers", "predictable", "eos_every"), values, strict=True)),
            one_of(1, 2),
            one_of(0, 3, 12),
            one_of(0, 0, 9),
        ),
        device=st.builds(
            lambda *values: tuple(
                zip(("stream", "early_rate", "graphs", "host_lengths", "seed"), values, strict=True)
            ),
            one_of("lazy", "lazy", "eager"),
            one_of(0, 0, 0.3),
            one_of("off", "on"),
            one_of("off", "on"),
            st.integers(0, 99),
        ),
        fail_rate=one_of(0, 0, 0.03, 0.2),
    )
)
JOBS = st.builds(
    Job,
    family=st.integers(0, len(FAMILIES) - 1),
    length=st.integers(0, 100),
    shared=one_of(0, 50, 90, 100),
    own=st.integers(0, 2),
    kind=st.sampled_from(sorted(KINDS)),
    max_tokens=st.integers(1, 24),
    min_tokens=one_of(0, 0, 4),
    seed=one_of(0, 1, -(2**62)),
    stops=st.booleans(),
    priority=st.integers(0, 2),
    salt=one_of(None, None, "pepper"),
    prefix_caching=one_of(True, True, True, False),
    num_logprobs=one_of(-1, -1, 0, 2),
    num_prompt_logprobs=one_of(-1, -1, -1, 0, 1),
)


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

    def __init__(self, oracle: Any, job: Job, max_len: int) -> None:
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
        assert (update.stop_token if update.stop_token >= 0 else None) == (self.output[-1] if self.reason == "stop" else None)
        assert bool(update.error) == (self.reason == "error")
        if self.reason:
            self.truth.check(self.output, self.reason, self.logprobs)
            self.truth.check_prompt(self.prompt_logprobs, complete=bool(self.output))


class Play:
    """One engine, the streams of its requests, and what it may and may not do."""

    def __init__(self, sim_backend: Callable[..., Any], setup: Setup, depth: int) -> None:
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
        self.num_rounds = self.num_idle = 0
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
        self.num_rounds += 1
        unfinished, num_steps = self.engine.num_unfinished, self.scheduler.stats.num_steps
        self._take(self.engine.step())
        is_idle = bool(unfinished) and self.scheduler.stats.num_steps == num_steps
        self.num_idle = self.num_idle + 1 if is_idle else 0
        assert self.num_idle < self.depth, "requests wait, and nothing is computed"
        in_flight = sum(plan.num_tokens for plan, _ in self.engine._in_flight)
        assert self.scheduler.total_inflight_tokens == in_flight
        assert in_flight == 0 or self.depth > 1

    def interrupt(self, where: str, *, after: bool) -> None:
        """A step that is interrupted, if it comes to that place."""
        self.runner.armed = (where, after)
        try:
            self.step()
        except KeyboardInterrupt:
            assert self.scheduler.total_inflight_tokens == 0
            self.scheduler.check()
        self.runner.armed = ("", False)

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

"""A runner whose model is a hash of everything a request has said so far, read back through its block table.

Any mix-up of slots, blocks, positions, settings or tokens changes what it says. Plans and results go
through bytes, as they do between processes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isoinfer.config import SchedulerConfig
from isoinfer.engine import wire
from isoinfer.engine.engine import Engine
from isoinfer.engine.messages import AddRequest, CoreSampling, TokenLogprobs, TokenUpdate
from isoinfer.engine.plan import SamplePlan, StepPlan, StepResult
from isoinfer.engine.scheduler import Scheduler
from isoinfer.errors import StepError
from isoinfer.kv.manager import KVManager

VOCAB = 61
UNWRITTEN = -1
TYPES = wire.registry(StepPlan, SamplePlan, StepResult, TokenLogprobs)


def hash_of(tokens: Sequence[int], *more: int) -> int:
    return zlib.crc32(np.array([*tokens, *more], dtype=np.int64).tobytes())


def choose(history: Sequence[int], seed: int, banned: Iterable[int]) -> int:
    """The token after `history`: the first one that is not banned, from the hash on."""
    banned = set(banned)
    start = hash_of(history, seed, len(history))
    return next(token for token in ((start + i) % VOCAB for i in range(VOCAB)) if token not in banned)


def logprob_of(history: Sequence[int], token: int) -> float:
    return -float(hash_of(history, token) % 1000)


def answer(prompt: Sequence[int], sampling: CoreSampling, max_model_len: int) -> tuple[list[int], str]:
    """What a request gives when it is alone: its tokens and its finish reason."""
    history = list(prompt)
    while True:
        early = len(history) - len(prompt) < sampling.min_tokens
        history.append(choose(history, sampling.seed, sampling.stop_token_ids if early else ()))
        output = history[len(prompt) :]
        if not early and history[-1] in sampling.stop_token_ids:
            return output, "stop"
        if len(output) == sampling.max_tokens or len(history) == max_model_len:
            return output, "length"


@dataclass(slots=True)
class Handle:
    plan: StepPlan
    histories: list[list[int]]
    sample_plan: SamplePlan | None = None


class FakeRunner:
    """What the engine asks of a runner, over a KV memory that holds the tokens themselves."""

    def __init__(self, *, num_blocks: int, block_size: int, fail_at: Iterable[int] = ()) -> None:
        self.memory_BS = np.full((num_blocks, block_size), UNWRITTEN, dtype=np.int64)
        self.block_size = block_size
        self.fail_at = frozenset(fail_at)
        self.plans: list[StepPlan] = []
        self.closed = False
        self.num_abandoned = 0

    def submit(self, plan: StepPlan) -> Handle:
        plan = wire.decode(wire.encode(plan), TYPES)
        self.plans.append(plan)
        used = [block for table in plan.block_table_RB.tolist() for block in table if block]
        assert len(used) == len(set(used)), "two rows share a block"
        ends = np.cumsum(plan.query_len_R).tolist()
        return Handle(plan, [self._row(plan, row, end) for row, end in enumerate(ends)])

    def _row(self, plan: StepPlan, row: int, end: int) -> list[int]:
        start, count = int(plan.start_R[row]), int(plan.query_len_R[row])
        assert count > 0
        position_L = np.arange(start + count)
        block_L = plan.block_table_RB[row, position_L // self.block_size]
        assert (block_L > 0).all(), "a position without a block"
        offset_L = position_L % self.block_size
        self.memory_BS[block_L[start:], offset_L[start:]] = plan.token_ids_T[end - count : end]
        return self.memory_BS[block_L, offset_L].tolist()

    def sample(self, handle: Handle, plan: SamplePlan) -> None:
        handle.sample_plan = wire.decode(wire.encode(plan), TYPES)

    def settle(self, handle: Handle) -> StepResult:
        plan, sampling = handle.plan, handle.sample_plan
        assert sampling is not None
        assert sampling.step_id == plan.step_id
        if plan.step_id in self.fail_at:
            raise StepError(f"step {plan.step_id} was told to fail")
        sampled = [history for history, samples in zip(handle.histories, plan.samples_R, strict=True) if samples]
        assert [len(history) for history in sampled] == sampling.position_G.tolist()
        tokens = [self._choose(sampling, row, history) for row, history in enumerate(sampled)]
        result = StepResult(
            step_id=plan.step_id,
            token_G=np.array(tokens, dtype=np.int32),
            logprobs=_logprobs(zip(sampled, tokens, strict=True), sampling.num_logprobs),
            prompt_logprobs=_logprobs(self._prompt_places(handle), plan.num_prompt_logprobs),
        )
        return wire.decode(wire.encode(result), TYPES)

    def _choose(self, sampling: SamplePlan, row: int, history: list[int]) -> int:
        mine = sampling.bias_row_M == row
        banned = sampling.bias_token_M[mine & np.isneginf(sampling.bias_value_M)].tolist()
        return choose(history, int(sampling.seed_G[row]), banned)

    def _prompt_places(self, handle: Handle) -> Iterable[tuple[list[int], int]]:
        plan = handle.plan
        first_R = np.cumsum(plan.query_len_R) - plan.query_len_R
        for index, target, row, position in zip(
            plan.prompt_index_Q, plan.prompt_target_Q, plan.prompt_row_Q, plan.prompt_position_Q, strict=True
        ):
            assert index - first_R[row] + plan.start_R[row] + 1 == position
            yield handle.histories[row][:position], int(target)

    def abandon(self) -> None:
        self.num_abandoned += 1

    def close(self) -> None:
        self.closed = True


def _logprobs(places: Iterable[tuple[list[int], int]], num: int) -> TokenLogprobs | None:
    own = [(logprob_of(history, token), token) for history, token in places]
    if num < 0 or not own:
        return None
    values = np.array([value for value, _ in own], dtype=np.float32)
    ids = np.array([token for _, token in own], dtype=np.int32)
    return TokenLogprobs(
        logprob_T=values,
        rank_T=ids + 1,
        top_ids_TX=np.repeat(ids[:, None], num, 1),
        top_logprobs_TX=np.repeat(values[:, None], num, 1),
    )


@dataclass(slots=True)
class Core:
    """An engine over the fake runner, and all that came out of it by request."""

    engine: Engine
    scheduler: Scheduler
    kv: KVManager
    runner: FakeRunner
    updates: dict[str, list[TokenUpdate]] = field(default_factory=dict)

    def add(self, request_id: str, prompt: Sequence[int], **sampling: Any) -> None:
        settings = CoreSampling(**{"max_tokens": 4, "seed": 0, **sampling})
        message = AddRequest(request_id=request_id, prompt_token_ids=np.array(prompt, np.int32), sampling=settings)
        self.engine.add(message)

    def take(self, updates: Iterable[TokenUpdate]) -> list[TokenUpdate]:
        listed = list(updates)
        for update in listed:
            self.updates.setdefault(update.request_id, []).append(update)
        return listed

    def step(self) -> list[TokenUpdate]:
        return self.take(self.engine.step())

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.engine.num_unfinished:
                return
            self.step()
        raise AssertionError(f"{self.engine.num_unfinished} requests unfinished after {max_steps} steps")

    def tokens(self, request_id: str) -> list[int]:
        return [token for update in self.updates[request_id] for token in update.token_ids]

    def reason(self, request_id: str) -> str:
        """The finish reason, checked to have come once and last."""
        reasons = [update.finish_reason for update in self.updates[request_id]]
        assert [bool(reason) for reason in reasons] == [False] * (len(reasons) - 1) + [True], reasons
        return reasons[-1]

    def assert_idle(self) -> None:
        assert self.scheduler.num_running == self.scheduler.num_unfinished == 0
        assert self.scheduler.kv_usage == 0.0
        self.kv.pool.check()
        assert self.scheduler._slots.num_free == self.scheduler._config.max_num_seqs
        assert not self.scheduler._in_flight


def make_core(
    *,
    num_blocks: int = 65,
    block_size: int = 4,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 64,
    fail_at: Iterable[int] = (),
) -> Core:
    kv = KVManager(num_blocks=num_blocks, block_size=block_size, num_slots=max_num_seqs, max_model_len=max_model_len)
    config = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    scheduler = Scheduler(config, kv=kv, vocab_size=VOCAB, max_model_len=max_model_len)
    runner = FakeRunner(num_blocks=num_blocks, block_size=block_size, fail_at=fail_at)
    return Core(Engine(scheduler, runner), scheduler, kv, runner)


@pytest.fixture(scope="session")
def fake() -> SimpleNamespace:
    """`make_core(...)`, and what the fake model says of a request that is alone."""
    return SimpleNamespace(make_core=make_core, answer=answer, logprob_of=logprob_of, vocab=VOCAB)

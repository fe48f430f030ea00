"""A runner whose model is a hash of everything a request has said so far, read back through its block table.

Any mix-up of slots, blocks, positions, settings or tokens changes what it says. Plans and results go
through bytes, as they do between processes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isoinfer.config import SchedulerConfig
from isoinfer.engine import wire
from isoinfer.engine.engine import Engine
from isoinfer.engine.messages import AddRequest, CoreSampling, TokenLogprobs, TokenUpdate
from isoinfer.engine.phase import Mixed, TwoPhase
from isoinfer.engine.plan import SamplePlan, StepPlan, StepResult
from isoinfer.engine.policy import make_policy
from isoinfer.engine.request import Request
from isoinfer.engine.scheduler import Scheduler
from isoinfer.engine.slots import slots_for
from isoinfer.errors import StepError
from isoinfer.kv.group_blocks import KVGroup
from isoinfer.kv.manager import KVManager
from isoinfer.speculation.config import SpeculativeConfig

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
    """A step on the fake device. `histories`: each row's tokens, drafts last. `tokens`, `drafts`: of sampling rows."""

    plan: StepPlan
    histories: list[list[int]]
    rejected: list[int]
    sample_plan: SamplePlan | None = None
    tokens: list[list[int]] = field(default_factory=list)
    drafts: list[list[int]] = field(default_factory=list)
    own: list[tuple[list[int], int]] = field(default_factory=list)


class FakeRunner:
    """What the engine asks of a runner, over KV memories that hold the tokens themselves, one for each group.

    With drafts it proposes true continuations, wrong from a place on that depends on the history. What is
    discarded is unwritten again, so a block that goes back too early is found by whoever reads it.
    """

    def __init__(
        self, *, num_blocks: Sequence[int], windows: Sequence[int | None], block_size: int, num_drafts: int,
        fail_at: Iterable[int] = (),
    ) -> None:  # fmt: skip
        self.memories = [np.full((count, block_size), UNWRITTEN, dtype=np.int64) for count in num_blocks]
        self.windows, self.block_size, self.num_drafts = windows, block_size, num_drafts
        self.fail_at = frozenset(fail_at)
        self.plans: list[StepPlan] = []
        self.last: Handle | None = None
        self.is_current: Callable[[StepPlan], Any] = lambda plan: [True] * plan.num_rows
        self.closed = False
        self.num_abandoned = 0

    def discard(self, group: int, blocks: Sequence[int]) -> None:
        self.memories[group][list(blocks)] = UNWRITTEN

    def submit(self, plan: StepPlan) -> Handle:
        plan = wire.decode(wire.encode(plan), TYPES)
        self.plans.append(plan)
        rows = [self._inputs(plan, row) for row in range(plan.num_rows)]
        handle = Handle(
            plan,
            [self._row(plan, row, start, tokens) for row, (start, tokens, _) in enumerate(rows)],
            [rejected for _, _, rejected in rows],
        )
        self.last = handle
        return handle

    def _inputs(self, plan: StepPlan, row: int) -> tuple[int, list[int], int]:
        """Where the row starts, its tokens, and how much lower that is than the plan says."""
        end = int(np.cumsum(plan.query_len_R)[row])
        start, count = int(plan.start_R[row]), int(plan.query_len_R[row])
        tokens = plan.token_ids_T[end - count : end].tolist()
        source = int(plan.remap_R[row])
        if source < 0:
            assert plan.uncertain_R[row] == 0
            return start, tokens, 0
        before = self.last
        assert before is not None
        assert before.plan.step_id == plan.step_id - 1
        assert before.plan.request_R[source] == plan.request_R[row]
        assert before.plan.epoch_R[source] == plan.epoch_R[row]
        place = int(before.plan.samples_R[:source].sum())
        new = before.tokens[place] if before.tokens else [0]
        rejected = int(before.plan.num_drafts_R[source]) + 1 - len(new)
        assert 0 <= rejected <= plan.uncertain_R[row]
        drafts = before.drafts[place] if before.drafts else []
        drafts = (drafts + [0] * self.num_drafts)[: count - 1]
        return start - rejected, [new[-1], *drafts], rejected

    def _row(self, plan: StepPlan, row: int, start: int, tokens: list[int]) -> list[int]:
        assert tokens
        position_L = np.arange(start + len(tokens))
        seen: list[list[int]] = []
        for memory_BS, table_RB, window in zip(self.memories, plan.block_tables, self.windows, strict=True):
            visible_L = position_L[max(0, start - window + 1) :] if window else position_L
            written_L = position_L[start:]
            table = table_RB[row]
            assert (table[written_L // self.block_size] > 0).all(), "a new token without a block"
            memory_BS[table[written_L // self.block_size], written_L % self.block_size] = tokens
            seen.append(memory_BS[table[visible_L // self.block_size], visible_L % self.block_size].tolist())
            assert UNWRITTEN not in seen[-1], "a token is read that nobody wrote"
        assert all(seen[0][len(seen[0]) - len(part) :] == part for part in seen[1:]), "groups disagree"
        return seen[0]

    def sample(self, handle: Handle, plan: SamplePlan) -> None:
        plan = handle.sample_plan = wire.decode(wire.encode(plan), TYPES)
        assert plan.step_id == handle.plan.step_id
        if plan.step_id in self.fail_at:
            return
        sampling = np.flatnonzero(handle.plan.samples_R).tolist()
        assert plan.places_G.tolist() == (handle.plan.num_drafts_R[sampling] + 1).tolist()
        place = 0
        for row in sampling:
            history, drafts = handle.histories[row], int(handle.plan.num_drafts_R[row])
            confirmed = len(history) - drafts
            said = []
            for j in range(drafts + 1):
                assert plan.position_P[place + j] == confirmed + j or not self.is_current(handle.plan)[row]
                said.append(self._choose(plan, place + j, history[: confirmed + j]))
                handle.own.append((history[: confirmed + j], said[-1]))
            right = next((j for j in range(drafts) if history[confirmed + j] != said[j]), drafts)
            new = said[: right + 1]
            handle.tokens.append(new)
            handle.drafts.append(self._propose([*history[:confirmed], *new], int(plan.seed_P[place])))
            place += drafts + 1

    def _propose(self, history: list[int], seed: int) -> list[int]:
        drafts: list[int] = []
        for _ in range(self.num_drafts):
            drafts.append(choose([*history, *drafts], seed, ()))
        right = hash_of(history, 77) % (self.num_drafts + 2)  # one more than there are: all right is likelier
        return [token if i < right else (token + 1) % VOCAB for i, token in enumerate(drafts)]

    def settle(self, handle: Handle) -> StepResult:
        plan, sampling = handle.plan, handle.sample_plan
        assert sampling is not None
        if plan.step_id in self.fail_at:
            raise StepError(f"step {plan.step_id} was told to fail")
        count, width = len(handle.tokens), self.num_drafts + 1
        token_GJ = np.zeros((count, width), dtype=np.int32)
        for row, tokens in enumerate(handle.tokens):
            token_GJ[row, : len(tokens)] = tokens
        result = StepResult(
            step_id=plan.step_id,
            token_GJ=token_GJ,
            count_G=np.array([len(tokens) for tokens in handle.tokens], dtype=np.int32),
            draft_GK=np.array(handle.drafts, dtype=np.int32).reshape(count, self.num_drafts),
            num_drafts_G=np.full(count, self.num_drafts, dtype=np.int32),
            logprobs=_logprobs(handle.own, sampling.num_logprobs),
            prompt_logprobs=_logprobs(self._prompt_places(handle), plan.num_prompt_logprobs),
        )
        return wire.decode(wire.encode(result), TYPES)

    def _choose(self, sampling: SamplePlan, place: int, history: list[int]) -> int:
        mine = sampling.bias_row_M == place
        banned = sampling.bias_token_M[mine & np.isneginf(sampling.bias_value_M)].tolist()
        return choose(history, int(sampling.seed_P[place]), banned)

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
        self.last = None

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

    def add(
        self, request_id: str, prompt: Sequence[int], *, priority: int = 0, salt: str | None = None, **sampling: Any
    ) -> None:
        settings = CoreSampling(**{"max_tokens": 4, "seed": 0, **sampling})
        ids = np.array(prompt, np.int32)
        self.engine.add(
            AddRequest(
                request_id=request_id, prompt_token_ids=ids, sampling=settings, priority=priority, cache_salt=salt
            )
        )

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
        self.take(self.engine.step())  # what is in flight for nobody
        assert self.engine.is_idle
        assert self.scheduler.num_running == self.scheduler.num_unfinished == 0
        assert self.scheduler.total_inflight_tokens == 0
        assert self.scheduler.kv_usage == 0.0
        self.scheduler.check()
        assert self.scheduler.residents.slots.num_free == self.scheduler.table.number_S.size


def make_core(
    *,
    num_blocks: int | Sequence[int] = 65,
    block_size: int = 4,
    max_model_len: int = 64,
    fail_at: Iterable[int] = (),
    depth: int = 1,
    num_drafts: int = 0,
    windows: Sequence[int | None] = (None,),
    prefix_caching: bool = True,
    **settings: Any,
) -> Core:
    """A core with one KV group for each of `windows`; `settings` are those of SchedulerConfig."""
    config = SchedulerConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 64, **settings})
    counts = [num_blocks] * len(windows) if isinstance(num_blocks, int) else list(num_blocks)
    runner = FakeRunner(
        num_blocks=counts, windows=windows, block_size=block_size, num_drafts=num_drafts, fail_at=fail_at
    )
    num_slots = slots_for(config.max_num_seqs, depth)
    kv = KVManager(
        [
            KVGroup(name=f"group-{index}", num_blocks=count, window=window)
            for index, (count, window) in enumerate(zip(counts, windows, strict=True))
        ],
        block_size=block_size,
        num_slots=num_slots,
        max_tokens=max_model_len,
        step_tokens=depth * config.max_num_batched_tokens,
        prefix_caching=prefix_caching,
        verify_tokens=True,
        on_discard=runner.discard,
    )
    scheduler = Scheduler(
        config,
        kv=kv,
        policy=make_policy(config.scheduling_policy),
        phase=TwoPhase() if config.scheduling_policy == "two-phase" else Mixed(),
        num_slots=num_slots,
        vocab_size=VOCAB,
        max_model_len=max_model_len,
        speculative=SpeculativeConfig(method="ngram", num_drafts=num_drafts, min_match=1, max_match=4)
        if num_drafts
        else None,
    )
    runner.is_current = lambda plan: scheduler.table.is_current(plan.slot_R, plan.request_R, plan.epoch_R)
    return Core(Engine(scheduler, runner, depth=depth, check_invariants=True), scheduler, kv, runner)


def step_plan(
    start: Sequence[int],
    count: Sequence[int],
    *,
    tables: Sequence[Sequence[Sequence[int]]] = (),
    samples: Sequence[bool] = (),
    drafts: Sequence[int] = (),
    remap: Sequence[int] = (),
    uncertain: Sequence[int] = (),
    floor: Sequence[int] = (),
    write_floor: Sequence[int] = (),
    step_id: int = 1,
) -> StepPlan:
    """A plan of rows that begin at `start` with `count` tokens, 100, 101, ...; all sample, none is remapped."""

    def ints(values: Sequence[int], default: int = 0) -> Any:
        return np.array(values if len(values) else [default] * len(start), dtype=np.int32)

    none = np.zeros(0, dtype=np.int32)
    return StepPlan(
        step_id=step_id,
        request_R=np.arange(len(start), dtype=np.int64),
        epoch_R=ints(()),
        slot_R=np.arange(len(start), dtype=np.int32),
        start_R=ints(start),
        uncertain_R=ints(uncertain),
        query_len_R=ints(count),
        num_drafts_R=ints(drafts),
        samples_R=np.array(samples or [True] * len(start)),
        remap_R=ints(remap, -1),
        floor_R=ints(floor),
        write_floor_R=ints(write_floor),
        block_tables=tuple(np.array(table, dtype=np.int32) for table in tables),
        token_ids_T=np.arange(100, 100 + sum(count), dtype=np.int32),
        predicted_RX=np.zeros((len(start), 0), dtype=np.int32),
        num_predicted_R=ints(()),
        entered_slot_E=none,
        entered_len_E=none,
        entered_tokens_T=none,
        prompt_index_Q=none,
        prompt_target_Q=none,
        prompt_row_Q=none,
        prompt_position_Q=none,
        num_prompt_logprobs=0,
    )


def make_request(number: int, prompt: Sequence[int] = (1,), *, priority: int = 0, **sampling: Any) -> Request:
    """A request as the scheduler holds it; `r0`, `r1`, ... by `number`."""
    settings = CoreSampling(**{"max_tokens": 4, "seed": 0, **sampling})
    ids = np.array(prompt, dtype=np.int32)
    message = AddRequest(request_id=f"r{number}", prompt_token_ids=ids, sampling=settings, priority=priority)
    return Request(number, message, 64)


@pytest.fixture(scope="session")
def fake() -> SimpleNamespace:
    """`make_core(...)`, what the fake model says of a request that is alone, and requests and plans by hand."""
    told = {"answer": answer, "logprob_of": logprob_of, "vocab": VOCAB}
    return SimpleNamespace(make_core=make_core, make_request=make_request, step_plan=step_plan, **told)

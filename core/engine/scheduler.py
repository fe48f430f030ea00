"""Decides which tokens of which requests each step computes. Knows no tensor and no backend.

First come, first served. Running requests go first, so decodes never wait for prefills; what is left of
the token budget takes prompt chunks. When KV runs out, the request that arrived last gives its blocks
back and is computed again later (preemption by recompute).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from isoinfer.config import SchedulerConfig
from isoinfer.engine.messages import AddRequest, TokenUpdate
from isoinfer.engine.plan import SamplePlan, StepPlan, StepResult
from isoinfer.engine.prompt_places import Row, prompt_places
from isoinfer.engine.request import Request
from isoinfer.engine.sampling_table import SamplingTable
from isoinfer.engine.slots import SlotPool
from isoinfer.engine.updates import UpdateBuilder
from isoinfer.errors import RequestError
from isoinfer.kv.manager import KVManager


@dataclass(slots=True)
class SchedulerStats:
    """Counts since start."""

    num_steps: int = 0
    num_scheduled_tokens: int = 0
    num_preemptions: int = 0
    num_failed_steps: int = 0


class Scheduler:
    """Queues, admission, preemption, and the state of every request."""

    def __init__(self, config: SchedulerConfig, *, kv: KVManager, vocab_size: int, max_model_len: int) -> None:
        self._config = config
        self._kv = kv
        self._max_model_len = max_model_len
        self._slots = SlotPool(config.max_num_seqs)
        self._sampling = SamplingTable(num_slots=config.max_num_seqs, vocab_size=vocab_size)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._by_id: dict[str, Request] = {}
        self._in_flight: dict[int, list[Row]] = {}
        self._numbers = iter(range(1 << 62))
        self.stats = SchedulerStats()

    # requests

    def add(self, message: AddRequest) -> None:
        """Queue a request. RequestError, with the numbers, if it can never be served."""
        if message.request_id in self._by_id:
            raise RequestError(f"request id {message.request_id!r} is in use; ids must be unique until finished")
        request = Request(next(self._numbers), message, self._max_model_len)
        if request.prompt_len < 1 or request.prompt_len >= self._max_model_len:
            raise RequestError(f"a prompt must have 1 to {self._max_model_len - 1} tokens, got {request.prompt_len}")
        if request.tokens_L.size > self._kv.capacity:
            raise RequestError(
                f"the request may grow to {request.tokens_L.size} tokens but all KV memory holds "
                f"{self._kv.capacity}; lower max_tokens or give more with kv_memory"
            )
        self._by_id[message.request_id] = request
        self._waiting.append(request)

    def abort(self, request_id: str) -> bool:
        """End a request by its exact id. False if there is none."""
        request = self._by_id.get(request_id)
        if request is None:
            return False
        self._retire(request)
        return True

    @property
    def num_unfinished(self) -> int:
        """Requests waiting or running."""
        return len(self._by_id)

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self._running)

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks in use."""
        return self._kv.usage

    # one step

    def schedule(self) -> StepPlan | None:
        """The next step, or None if there is nothing to do."""
        budget, preemptions = self._config.max_num_batched_tokens, self.stats.num_preemptions
        rows: list[Row] = []
        for request in list(self._running):
            if budget == 0:
                break
            if request not in self._running:
                continue  # preempted by one before it
            count = min(request.num_uncomputed, budget)
            if self._make_room(request, request.num_computed + count, rows):
                rows.append(Row(request, count))
                budget -= count
        if self.stats.num_preemptions == preemptions:  # what was just freed belongs to those who lacked it
            self._admit(rows, budget)
        if not rows:
            return None
        return self._plan(rows)

    def sample_plan(self, plan: StepPlan) -> SamplePlan:
        """The sampling part of a submitted step."""
        rows = self._in_flight[plan.step_id]
        sampling = [row.request for row, samples in zip(rows, plan.samples_R, strict=True) if samples]
        return self._sampling.plan(plan.step_id, sampling)

    def settle(self, plan: StepPlan, result: StepResult) -> list[TokenUpdate]:
        """Take in what a step produced. Rows of requests that ended or restarted meanwhile are dropped."""
        builder = UpdateBuilder(plan, result)
        sampled = 0
        for index, row in enumerate(self._in_flight.pop(plan.step_id)):
            samples = bool(plan.samples_R[index])
            if self._is_current(row.request, plan, index):
                token = int(result.token_G[sampled]) if samples else None
                self._advance(row, token, builder, index, sampled)
            sampled += samples
        return builder.updates

    def fail(self, plan: StepPlan, message: str) -> list[TokenUpdate]:
        """A step raised: its requests end with the message, all others go on."""
        self.stats.num_failed_steps += 1
        rows = self._in_flight.pop(plan.step_id)
        failed = [row.request for index, row in enumerate(rows) if self._is_current(row.request, plan, index)]
        for request in failed:
            self._retire(request)
        return [TokenUpdate(request_id=r.request_id, finish_reason="error", error=message) for r in failed]

    def forget(self, plan: StepPlan) -> None:
        """A step was given up: its requests stand where they stood, and the same tokens are scheduled again."""
        self._in_flight.pop(plan.step_id, None)

    # inside

    def _is_current(self, request: Request, plan: StepPlan, index: int) -> bool:
        return self._by_id.get(request.request_id) is request and request.epoch == int(plan.epoch_R[index])

    def _advance(self, row: Row, token: int | None, builder: UpdateBuilder, index: int, sampled: int) -> None:
        request = row.request
        request.num_computed += row.count
        reason = ""
        if token is not None:
            request.append(token)
            reason = request.finish_reason(token)
        builder.add(request, index, token, sampled, reason)
        if reason:
            self._retire(request)

    def _make_room(self, request: Request, num_tokens: int, rows: list[Row]) -> bool:
        """Extend `request`'s blocks, preempting later requests if need be. False if it was preempted itself."""
        while not self._kv.extend(request.slot, num_tokens):
            victim = self._running[-1]
            self._preempt(victim)
            rows[:] = [row for row in rows if row.request is not victim]
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        self._leave_slot(request)
        request.restart()
        self._waiting.appendleft(request)
        self.stats.num_preemptions += 1

    def _admit(self, rows: list[Row], budget: int) -> None:
        """Start waiting requests while slots, budget and KV for all their known tokens last."""
        while self._waiting and budget > 0 and self._slots.num_free:
            request = self._waiting[0]
            # No running prompt waits for blocks here: one that is not complete has taken the whole budget.
            if self._kv.blocks_for(request.num_tokens) > self._kv.pool.num_free:
                return
            self._waiting.popleft()
            request.slot = self._slots.take()
            self._sampling.add(request.slot, request.sampling)
            self._running.append(request)
            count = min(request.num_uncomputed, budget)
            extended = self._kv.extend(request.slot, count)
            assert extended, "admission has checked the pool"
            rows.append(Row(request, count))
            budget -= count

    def _retire(self, request: Request) -> None:
        del self._by_id[request.request_id]
        if request.slot >= 0:
            self._running.remove(request)
            self._leave_slot(request)
        else:
            self._waiting.remove(request)

    def _leave_slot(self, request: Request) -> None:
        self._kv.release(request.slot)
        self._slots.give(request.slot)

    def _plan(self, rows: list[Row]) -> StepPlan:
        self.stats.num_steps += 1
        requests = [row.request for row in rows]
        count_R = _ints(row.count for row in rows)
        start_R = _ints(request.num_computed for request in requests)
        slot_R = _ints(request.slot for request in requests)
        tokens = [
            r.tokens_L[r.num_computed : r.num_computed + row.count] for r, row in zip(requests, rows, strict=True)
        ]
        plan = StepPlan(
            step_id=self.stats.num_steps,
            request_R=np.array([request.number for request in requests], dtype=np.int64),
            epoch_R=_ints(request.epoch for request in requests),
            slot_R=slot_R,
            start_R=start_R,
            query_len_R=count_R,
            samples_R=start_R + count_R == _ints(request.num_tokens for request in requests),
            remap_R=np.full(len(rows), -1, dtype=np.int32),
            block_table_RB=self._kv.tables(slot_R),
            token_ids_T=np.concatenate(tokens),
            **prompt_places(rows),
        )
        self.stats.num_scheduled_tokens += plan.num_tokens
        self._in_flight[plan.step_id] = rows
        return plan


def _ints(values: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(list(values), dtype=np.int32)

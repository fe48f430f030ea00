"""Decides which tokens of which requests each step computes. Knows no tensor and no backend.

Decodes go first, so they never wait for prompts; what is left of the token budget takes prompt chunks, then
new requests in the order of the policy. A step may be scheduled while the one before it still runs: then
its rows take their tokens on the device (Remap), and what ends in between is released only when the
last step that may touch it has settled (DeferredRelease). When KV runs out, the request that the policy
ranks last gives its blocks back and is computed again later (preemption by recompute).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isoinfer.config import SchedulerConfig
from isoinfer.engine.admission import Admission
from isoinfer.engine.host_proposer import HostProposer, prediction_width
from isoinfer.engine.messages import AddRequest, TokenUpdate
from isoinfer.engine.phase import Mixed, PhaseRule, Situation
from isoinfer.engine.plan import SamplePlan, StepPlan, StepResult
from isoinfer.engine.plan_builder import PlanBuilder
from isoinfer.engine.policy import Policy
from isoinfer.engine.request import Request
from isoinfer.engine.residents import Residents
from isoinfer.engine.row_choice import RowChoice, StepRows
from isoinfer.engine.sampling_table import SamplingTable
from isoinfer.engine.settlement import Settlement
from isoinfer.engine.slot_table import NOBODY, SlotTable
from isoinfer.errors import RequestError
from isoinfer.kv.manager import KVManager, KVStats
from isoinfer.speculation.config import SpeculativeConfig


@dataclass(slots=True)
class SchedulerStats:
    """Counts since start. `num_wasted_rows`: computed for requests that had ended or were restarted meanwhile."""

    num_steps: int = 0
    num_scheduled_tokens: int = 0
    num_preemptions: int = 0
    num_failed_steps: int = 0
    num_wasted_rows: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class Scheduler:
    """Queues, admission, preemption, and the state of every request."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        kv: KVManager,
        policy: Policy,
        num_slots: int,
        vocab_size: int,
        max_model_len: int,
        depth: int = 1,
        speculative: SpeculativeConfig | None = None,
        phase: PhaseRule | None = None,
    ) -> None:
        self._config, self._kv, self._max_model_len = config, kv, max_model_len
        self._phase = phase or Mixed()
        self.stats = SchedulerStats()
        width = 0 if speculative is None else prediction_width(speculative)
        self.table = SlotTable(num_slots=num_slots, width=max_model_len + 1, num_drafts=width)
        on_host = speculative is not None and not speculative.on_device
        proposer = HostProposer(speculative, self.table, depth) if speculative is not None and on_host else None
        self._sampling = SamplingTable(num_slots=num_slots, vocab_size=vocab_size)
        self.residents = Residents(self.table, kv, self._sampling, policy, vocab_size, proposer)
        self._rows = RowChoice(config, self.table, self.residents, kv, self._sampling.is_special_S, speculative)
        self._admission = Admission(config, self.table, self.residents, kv, policy)
        self._builder = PlanBuilder(self.table, kv, speculative, depth)
        self._settlement = Settlement(self.table, self.residents, kv, self.stats, proposer)
        self._in_flight: dict[int, StepPlan] = {}
        self._numbers = iter(range(1 << 62))

    # requests

    def add(self, message: AddRequest) -> None:
        """Queue a request. RequestError, with the numbers, if it can never be served."""
        if message.request_id in self.residents.by_id:
            raise RequestError(f"request id {message.request_id!r} is in use; ids must be unique until finished")
        prompt_len = int(message.prompt_token_ids.size)
        if prompt_len < 1 or prompt_len >= self._max_model_len:
            raise RequestError(f"a prompt must have 1 to {self._max_model_len - 1} tokens, got {prompt_len}")
        request = Request(next(self._numbers), message, self._max_model_len)
        if why := self._kv.fits(request.limit):
            raise RequestError(f"{why}; lower max_tokens or give more with kv_memory")
        self.residents.queue(request)

    def abort(self, request_id: str) -> bool:
        """End a request by its exact id, wherever it is. False if there is none."""
        request = self.residents.by_id.get(request_id)
        if request is None:
            return False
        self.residents.retire(request)
        return True

    @property
    def num_unfinished(self) -> int:
        """Requests waiting or running."""
        return len(self.residents.by_id)

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self.residents.running)

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks that requests own."""
        return self._kv.usage

    @property
    def kv_stats(self) -> KVStats:
        """What the prefix cache has counted."""
        return self._kv.stats

    @property
    def total_inflight_tokens(self) -> int:
        """Tokens scheduled and not settled. 0 when nothing is in flight."""
        return sum(plan.num_tokens for plan in self._in_flight.values())

    # one step

    def schedule(self) -> StepPlan | None:
        """The next step, or None if there is nothing to do until something in flight settles."""
        phase = self._phase.choose(self._situation)
        rows = StepRows(self._config.max_num_batched_tokens)
        sits_out = self._admission.make_way()
        preemptions = self.residents.num_preemptions
        self._rows.fill(rows, phase, sits_out)
        if self.residents.num_preemptions == preemptions and phase != "decode":
            self._admission.fill(rows)  # else what was just freed belongs to those who lacked it
        if phase == "prefill" and not rows.slots:
            self._rows.fill(rows, "decode", sits_out)
        self.stats.num_preemptions = self.residents.num_preemptions
        if not rows.slots:
            return None
        self.stats.num_steps += 1
        plan = self._builder.build(self.stats.num_steps, rows)
        self._in_flight[plan.step_id] = plan
        self.residents.last_step = plan.step_id
        self.stats.num_scheduled_tokens += plan.num_tokens
        return plan

    def sample_plan(self, plan: StepPlan) -> SamplePlan:
        """The sampling part of a submitted step. Every step before it has settled, so its tokens are known."""
        slots_G = plan.slot_R[plan.samples_R]
        return self._sampling.plan(plan.step_id, self.table, slots_G, plan.num_drafts_R[plan.samples_R])

    def settle(self, plan: StepPlan, result: StepResult) -> list[TokenUpdate]:
        """Take in what a step produced. Rows of requests that ended or restarted meanwhile are dropped."""
        self._leave_flight(plan)
        updates = self._settlement.settle(plan, result)
        self.residents.settled(plan.step_id)
        return updates

    def fail(self, plan: StepPlan, message: str) -> list[TokenUpdate]:
        """A step raised: its requests end with the message, all others go on."""
        self.stats.num_failed_steps += 1
        self._leave_flight(plan)
        current_R = self.table.is_current(plan.slot_R, plan.request_R, plan.epoch_R)
        failed = [self.residents.at(slot) for slot in plan.slot_R[current_R].tolist()]
        for request in failed:
            self.residents.retire(request)
        self.residents.settled(plan.step_id)
        return [TokenUpdate(request_id=r.request_id, finish_reason="error", error=message) for r in failed]

    def forget(self) -> None:
        """Every step in flight was given up and the device is done with it: the same tokens are scheduled again."""
        self._in_flight.clear()
        if self._kv.has_rings:  # the steps may have put their tokens where others are still to be read
            for slot in np.flatnonzero((self.table.inflight_S > 0) & (self.table.number_S != NOBODY)).tolist():
                self.residents.preempt(slot)
        self.table.rewind()
        self.residents.settled(self.residents.last_step)

    # inside

    def _leave_flight(self, plan: StepPlan) -> None:
        assert next(iter(self._in_flight)) == plan.step_id, "steps settle in the order they were submitted"
        del self._in_flight[plan.step_id]
        self.table.inflight_S[plan.slot_R] -= plan.query_len_R

    def _situation(self) -> Situation:
        need_R = self.table.need(self.residents.running.slots())
        return Situation(
            can_prefill=bool((need_R > 1).any()) or self._admission.may_admit(),
            can_decode=bool((need_R == 1).any()),
            kv_usage=self._kv.usage,
        )

    def check(self) -> None:
        """Assert every invariant of DESIGN section 4; for tests and --check-invariants."""
        table = self.table
        table.check()
        self._kv.check()
        self.residents.check()
        in_flight = np.zeros_like(table.inflight_S)
        for plan in self._in_flight.values():
            in_flight[plan.slot_R] += plan.query_len_R
        assert (in_flight == table.inflight_S).all(), "the ledger of tokens in flight is wrong"
        assert int(table.inflight_S.sum()) == self.total_inflight_tokens

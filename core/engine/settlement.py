"""Takes in what a step produced: tokens, rejected drafts, ends of requests, KV that can be shared or given back.

Suffixes: R rows of the step, G its sampling rows, C those that are still current, J new tokens of a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isoinfer.engine.host_proposer import HostProposer
from isoinfer.engine.messages import Int32Array, TokenUpdate
from isoinfer.engine.plan import BoolArray, StepPlan, StepResult
from isoinfer.engine.residents import Residents
from isoinfer.engine.slot_table import SlotTable
from isoinfer.engine.updates import UpdateBuilder
from isoinfer.kv.manager import KVManager

if TYPE_CHECKING:
    from isoinfer.engine.scheduler import SchedulerStats

Ends = dict[int, str]
"""Finish reason by slot."""


class Settlement:
    """Applies results to the table."""

    def __init__(
        self,
        table: SlotTable,
        residents: Residents,
        kv: KVManager,
        stats: SchedulerStats,
        proposer: HostProposer | None,
    ) -> None:
        self._table, self._residents, self._kv, self._stats = table, residents, kv, stats
        self._proposer = proposer

    def settle(self, plan: StepPlan, result: StepResult) -> list[TokenUpdate]:
        """Update every request of the step that is still there; end those that are complete."""
        table, slot_R, samples_R = self._table, plan.slot_R, plan.samples_R
        current_R = table.is_current(slot_R, plan.request_R, plan.epoch_R)
        self._stats.num_wasted_rows += slot_R.size - int(current_R.sum())
        new_R = np.where(samples_R, plan.num_drafts_R + 1, 0).astype(np.int32)
        given_R = np.zeros_like(new_R)
        given_R[samples_R] = result.count_G
        table.settle(slot_R[current_R], plan.query_len_R[current_R], new_R[current_R], (new_R - given_R)[current_R])
        current_G = current_R[samples_R]
        self._count_drafts(plan.num_drafts_R[samples_R][current_G], result.count_G[current_G])
        slot_C = slot_R[samples_R][current_G]
        token_CJ, count_C = result.token_GJ[current_G], result.count_G[current_G]
        count_C, ends = self._ends(slot_C, token_CJ, count_C)
        table.append(slot_C, token_CJ, count_C)
        self._keep_drafts(slot_C, token_CJ, count_C, result, current_G)
        self._publish(slot_R[current_R], ends)
        given_R[np.flatnonzero(samples_R)[current_G]] = count_C
        updates = self._updates(plan, result, current_R, given_R, ends)
        for slot in ends:
            self._residents.retire(self._residents.at(slot))
        return updates

    def _count_drafts(self, drafts_C: Int32Array, count_C: Int32Array) -> None:
        if drafts_C.size and drafts_C.any():
            self._stats.num_draft_tokens += int(drafts_C.sum())
            self._stats.num_accepted_tokens += int((count_C - 1).sum())

    def _ends(self, slot_C: Int32Array, token_CJ: Int32Array, count_C: Int32Array) -> tuple[Int32Array, Ends]:
        """Which requests end and why, and how many tokens each row keeps: none after the one that ends it."""
        table, ends = self._table, Ends()
        total_C = table.known_S[slot_C] + count_C
        may_C: BoolArray = (total_C >= table.limit_S[slot_C]) | self._residents.stop_ids.may_end(token_CJ)
        if not may_C.any():
            return count_C, ends
        kept_C = count_C.copy()
        for c in np.flatnonzero(may_C).tolist():
            slot, request = int(slot_C[c]), self._residents.at(int(slot_C[c]))
            known = int(table.known_S[slot])
            for j, token in enumerate(token_CJ[c, : count_C[c]].tolist()):
                if reason := request.finish_reason(token, known + j + 1):
                    ends[slot], kept_C[c] = reason, j + 1
                    break
        return kept_C, ends

    def _keep_drafts(
        self, slot_C: Int32Array, token_CJ: Int32Array, count_C: Int32Array, result: StepResult, current_G: BoolArray
    ) -> None:
        """What may come next: from the device, or from the proposer on the host."""
        if self._proposer is not None:
            for slot, tokens, count in zip(slot_C.tolist(), token_CJ.tolist(), count_C.tolist(), strict=True):
                self._proposer.append(slot, tokens[:count])
        elif width := result.draft_GK.shape[1]:
            self._table.drafts_SK[slot_C, :width] = result.draft_GK[current_G]
            self._table.num_drafts_S[slot_C] = result.num_drafts_G[current_G]

    def _publish(self, slot_C: Int32Array, ends: Ends) -> None:
        """Tell the KV manager how far KV is settled. KV past the token that ended a request is of no use."""
        table = self._table
        if ends:
            ended = np.fromiter(ends, dtype=np.int32, count=len(ends))
            table.confirmed_S[ended] = np.minimum(table.confirmed_S[ended], table.known_S[ended] - 1)
        self._kv.settle(slot_C, table.confirmed_S[slot_C], self._residents.last_step)

    def _updates(
        self, plan: StepPlan, result: StepResult, current_R: BoolArray, given_R: Int32Array, ends: Ends
    ) -> list[TokenUpdate]:
        builder = UpdateBuilder(plan, result)
        places_R = np.where(plan.samples_R, plan.num_drafts_R + 1, 0)
        place_R = (np.cumsum(places_R) - places_R).tolist()
        tokens_R = self._tokens_of_rows(plan, result, given_R)
        slots, requests = plan.slot_R.tolist(), self._table.requests
        for row in np.flatnonzero(current_R).tolist():
            slot = slots[row]
            request = requests[slot]
            assert request is not None
            builder.add(request, row, tokens_R[row], place_R[row], ends.get(slot, ""))
        return builder.updates

    @staticmethod
    def _tokens_of_rows(plan: StepPlan, result: StepResult, given_R: Int32Array) -> list[tuple[int, ...]]:
        """The kept new tokens of each row, none for rows that do not sample."""
        tokens: list[tuple[int, ...]] = [()] * plan.num_rows
        rows = np.flatnonzero(plan.samples_R).tolist()
        if result.token_GJ.shape[1] == 1:
            for row, token in zip(rows, result.token_GJ[:, 0].tolist(), strict=True):
                tokens[row] = (token,)
            return tokens
        for row, listed, count in zip(rows, result.token_GJ.tolist(), given_R[plan.samples_R].tolist(), strict=True):
            tokens[row] = tuple(listed[:count])
        return tokens

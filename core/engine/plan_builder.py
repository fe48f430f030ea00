"""Writes the rows of a step as a StepPlan. For rows that only decode everything is a few array operations.

Suffixes: R rows, T tokens of the step, C columns: the tokens of the widest decoding row, Q prompt places.
"""

from __future__ import annotations

import numpy as np

from isoinfer.engine.messages import Int32Array
from isoinfer.engine.plan import FRESH, BoolArray, StepPlan
from isoinfer.engine.prompt_places import prompt_places
from isoinfer.engine.row_choice import StepRows
from isoinfer.engine.slot_table import SlotTable
from isoinfer.kv.manager import KVManager
from isoinfer.speculation.config import SpeculativeConfig


class PlanBuilder:
    """Makes plans, and notes in the table that they are in flight."""

    def __init__(self, table: SlotTable, kv: KVManager, speculative: SpeculativeConfig | None, depth: int) -> None:
        self._table, self._kv = table, kv
        self._keeps_history = speculative is not None and speculative.keeps_history(depth)
        self._on_host = speculative is not None and not speculative.on_device

    def build(self, step_id: int, rows: StepRows) -> StepPlan:
        """The plan of `rows`, which are in flight from now on."""
        table = self._table
        slot_R = np.array(rows.slots, dtype=np.int32)
        count_R = np.array(rows.counts, dtype=np.int32)
        drafts_R = np.array(rows.drafts, dtype=np.int32)
        start_R = table.scheduled_S[slot_R]
        outputs_R = table.outputs_S[slot_R]
        is_remapped_R = outputs_R > 0
        samples_R = start_R + count_R == table.known_S[slot_R] + outputs_R + drafts_R
        predicted_RX, num_predicted_R = self._predicted(slot_R, is_remapped_R)
        slot_E, len_E, entered_T = self._entered(slot_R)
        plan = StepPlan(
            step_id=step_id,
            request_R=table.number_S[slot_R],
            epoch_R=table.epoch_S[slot_R],
            slot_R=slot_R,
            start_R=start_R,
            uncertain_R=np.maximum(outputs_R - 1, 0),
            query_len_R=count_R,
            num_drafts_R=drafts_R,
            samples_R=samples_R,
            remap_R=np.where(is_remapped_R, table.row_S[slot_R], FRESH).astype(np.int32),
            floor_R=table.floor_S[slot_R],
            write_floor_R=table.write_floor_S[slot_R],
            block_tables=tuple(self._kv.tables(group, slot_R) for group in range(self._kv.num_groups)),
            token_ids_T=self._tokens(slot_R, start_R, count_R, drafts_R, is_remapped_R),
            predicted_RX=predicted_RX,
            num_predicted_R=num_predicted_R,
            entered_slot_E=slot_E,
            entered_len_E=len_E,
            entered_tokens_T=entered_T,
            **prompt_places(table, slot_R, start_R, count_R),
        )
        assert (table.last_step_S[slot_R[is_remapped_R]] == step_id - 1).all(), "a token of an older step is lost"
        table.submit(slot_R, count_R, np.where(samples_R, drafts_R + 1, 0).astype(np.int32), step_id)
        return plan

    def _tokens(
        self,
        slot_R: Int32Array,
        start_R: Int32Array,
        count_R: Int32Array,
        drafts_R: Int32Array,
        is_remapped_R: BoolArray,
    ) -> Int32Array:
        """Every row's tokens one after another; 0 where they are still on the device."""
        table = self._table
        first_R: Int32Array = np.where(is_remapped_R, 0, table.tokens_SL[slot_R, start_R]).astype(np.int32)
        if int(count_R.max()) == 1:
            return first_R
        begin_R = np.cumsum(count_R) - count_R
        tokens_T: Int32Array = np.empty(int(count_R.sum()), dtype=np.int32)
        width = int(drafts_R.max())
        rows_RC = np.zeros((slot_R.size, 1 + width), dtype=np.int32)  # as if all decoded: a token and its drafts
        rows_RC[:, 0] = first_R
        rows_RC[:, 1:] = np.where(is_remapped_R[:, None], 0, table.drafts_SK[slot_R, :width])
        column_C = np.arange(1 + width)
        is_there_RC = column_C <= drafts_R[:, None]
        tokens_T[(begin_R[:, None] + column_C)[is_there_RC]] = rows_RC[is_there_RC]
        for row in np.flatnonzero(count_R > drafts_R + 1).tolist():
            begin, count, start = int(begin_R[row]), int(count_R[row]), int(start_R[row])
            tokens_T[begin : begin + count] = table.tokens_SL[slot_R[row], start : start + count]
        return tokens_T

    def _predicted(self, slot_R: Int32Array, is_remapped_R: BoolArray) -> tuple[Int32Array, Int32Array]:
        """What the host expects of rows whose tokens are in flight."""
        table = self._table
        if not self._on_host or not is_remapped_R.any():
            return np.zeros((slot_R.size, 0), dtype=np.int32), np.zeros(slot_R.size, dtype=np.int32)
        num_R = np.where(is_remapped_R, table.num_drafts_S[slot_R], 0).astype(np.int32)
        return table.drafts_SK[slot_R], num_R

    def _entered(self, slot_R: Int32Array) -> tuple[Int32Array, Int32Array, Int32Array]:
        """Slots that requests have just entered, how many tokens each has, and these, for histories on the device."""
        table = self._table
        slots = slot_R[table.has_entered_S[slot_R]] if self._keeps_history else slot_R[:0]
        table.has_entered_S[slot_R] = False
        known_E = table.known_S[slots]
        tokens = [table.tokens_SL[slot, :count] for slot, count in zip(slots.tolist(), known_E.tolist(), strict=True)]
        joined: Int32Array = np.concatenate(tokens) if tokens else np.zeros(0, dtype=np.int32)
        return slots, known_E, joined

"""Chooses the rows of a step among running requests: all decodes, then prompt chunks, as budget and KV allow.

Suffixes: R rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from isoinfer.config import SchedulerConfig
from isoinfer.engine.messages import Int32Array
from isoinfer.engine.phase import Phase
from isoinfer.engine.plan import BoolArray
from isoinfer.engine.residents import Residents
from isoinfer.engine.slot_table import NOBODY, SlotTable
from isoinfer.kv.manager import KVManager
from isoinfer.speculation.config import SpeculativeConfig


@dataclass(slots=True)
class StepRows:
    """The step as it grows. `budget`: tokens that are left. `counts`, `drafts`: tokens of each row, guesses among them.

    `has_decodes`: whether a row is there that a long prompt beside it would slow down.
    """

    budget: int
    slots: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    has_decodes: bool = False

    def add(self, slots_R: Int32Array, counts_R: Int32Array, drafts_R: Int32Array) -> None:
        """More rows, whose tokens the budget holds."""
        self.budget -= int(counts_R.sum())
        self.slots += slots_R.tolist()
        self.counts += counts_R.tolist()
        self.drafts += drafts_R.tolist()


class RowChoice:
    """The share of running requests in each step."""

    def __init__(
        self,
        config: SchedulerConfig,
        table: SlotTable,
        residents: Residents,
        kv: KVManager,
        is_special_S: BoolArray,
        speculative: SpeculativeConfig | None,
    ) -> None:
        self._config, self._table, self._residents, self._kv = config, table, residents, kv
        self._is_special_S = is_special_S
        self._speculative = speculative
        self._turn = 0

    def fill(self, rows: StepRows, phase: Phase, sits_out: int = NOBODY) -> None:
        """Add rows of running requests but slot `sits_out`. Those that lack KV make others give way, or sit out too."""
        table, slots_R = self._table, self._residents.running.slots()
        if slots_R.size == 0:
            return
        need_R = table.need(slots_R)
        open_R = (need_R > 0) & table.may_go_on(slots_R) & (slots_R != sits_out)
        decodes_R = slots_R[open_R & (need_R == 1)] if phase != "prefill" else slots_R[:0]
        prompts_R = slots_R[open_R & (need_R > 1)] if phase != "decode" else slots_R[:0]
        decodes_R, counts_R = self._decodes(decodes_R, rows.budget)
        rows.has_decodes = decodes_R.size > 0
        if prompts_R.size == 0:
            self._add(rows, decodes_R, counts_R, counts_R - 1)
            return
        prompts_R, chunks_R = self._chunks(prompts_R, rows.budget - int(counts_R.sum()), rows.has_decodes)
        self._add(
            rows,
            np.concatenate([decodes_R, prompts_R]),
            np.concatenate([counts_R, chunks_R]),
            np.concatenate([counts_R - 1, np.zeros_like(chunks_R)]),
        )

    def _decodes(self, slots_R: Int32Array, budget: int) -> tuple[Int32Array, Int32Array]:
        """Who decodes, in turn if the budget is too small for all, and how many tokens with drafts."""
        drafts_R = self._drafts(slots_R)
        counts_R: Int32Array = drafts_R + 1
        if int(counts_R.sum()) <= budget:
            return slots_R, counts_R
        if slots_R.size > budget:
            self._turn = (self._turn + budget) % slots_R.size
            slots_R = np.roll(slots_R, -self._turn)[:budget]
        return slots_R, np.ones(slots_R.size, dtype=np.int32)

    def _drafts(self, slots_R: Int32Array) -> Int32Array:
        """Drafts of each decoding row: as many as there are or may be on the device, and as its length has room for."""
        speculative, table = self._speculative, self._table
        if speculative is None:
            return np.zeros(slots_R.size, dtype=np.int32)
        is_ahead_R, there_R = table.outputs_S[slots_R] > 0, table.num_drafts_S[slots_R]
        # While tokens are in flight the device may yet find drafts. Which ones it takes where the host predicts too,
        # the host learns too late for requests with rare settings.
        late_R = self._is_special_S[slots_R] & (not speculative.on_device)
        coming_R = np.where(late_R, 0, speculative.num_drafts)
        most_R = np.minimum(np.where(is_ahead_R, coming_R, there_R), speculative.num_drafts)
        room_R = table.limit_S[slots_R] - table.known_S[slots_R] - table.outputs_S[slots_R] - 1
        drafts_R: Int32Array = np.clip(room_R, 0, most_R).astype(np.int32)
        return drafts_R

    def _chunks(self, slots_R: Int32Array, budget: int, with_decodes: bool) -> tuple[Int32Array, Int32Array]:
        """The prompts that go on, and how many tokens each."""
        chunks: list[int] = []
        for need in self._table.need(slots_R).tolist():
            if budget == 0:
                break
            chunks.append(self._config.chunk(need, budget, with_decodes))
            budget -= chunks[-1]
        return slots_R[: len(chunks)], np.array(chunks, dtype=np.int32)

    def _add(self, rows: StepRows, slots_R: Int32Array, counts_R: Int32Array, drafts_R: Int32Array) -> None:
        upper_R: Int32Array = self._table.scheduled_S[slots_R] + counts_R
        short_R = self._kv.missing(slots_R, upper_R) > 0
        if short_R.any():
            kept_R = self._extend(slots_R, upper_R, short_R)
            slots_R, counts_R, drafts_R = slots_R[kept_R], counts_R[kept_R], drafts_R[kept_R]
        rows.add(slots_R, counts_R, drafts_R)

    def _extend(self, slots_R: Int32Array, upper_R: Int32Array, short_R: BoolArray) -> BoolArray:
        """Give blocks to the rows that lack some, first come first. Which rows can run in this step."""
        gone: set[int] = set()  # preempted, or sitting out so that they can be
        upper = dict(zip(slots_R.tolist(), upper_R.tolist(), strict=True))
        short = set(slots_R[short_R].tolist())
        for slot in self._residents.running.slots().tolist():
            if slot in short and slot not in gone and not self._make_room(slot, upper[slot], gone):
                gone.add(slot)
        kept_R: BoolArray = np.array([slot not in gone for slot in slots_R.tolist()], dtype=np.bool_)
        return kept_R

    def _make_room(self, slot: int, num_tokens: int, gone: set[int]) -> bool:
        """Extend the blocks of `slot`; others give way if need be. False if it must sit out.

        A victim in flight would free nothing now: it sits out this step and is preempted in the next. Blocks
        that come back with the next settled step are waited for.
        """
        while not self._kv.extend(slot, num_tokens):
            if self._kv.has_pending:
                return False
            _, victim = self._residents.running.last
            gone.add(victim)
            if self._table.inflight_S[victim] > 0:
                return False
            self._residents.preempt(victim)
            if victim == slot:
                return False
        return True

"""Starts waiting requests while slots, budget and KV last. It reserves for prompts that are not complete yet."""

from __future__ import annotations

import numpy as np

from isoinfer.config import SchedulerConfig
from isoinfer.engine.policy import Policy
from isoinfer.engine.request import Request
from isoinfer.engine.residents import Residents
from isoinfer.engine.row_choice import StepRows
from isoinfer.engine.slot_table import NOBODY, SlotTable
from isoinfer.kv.manager import KVManager
from isoinfer.kv.prefix_hit import PrefixHit


class Admission:
    """Who of the waiting runs next."""

    def __init__(
        self, config: SchedulerConfig, table: SlotTable, residents: Residents, kv: KVManager, policy: Policy
    ) -> None:
        self._config, self._table, self._residents, self._kv, self._policy = config, table, residents, kv, policy
        self._refused = NOBODY

    def may_admit(self) -> bool:
        """Whether someone waits and a slot is free."""
        return bool(len(self._residents.waiting)) and self._has_slot()

    def make_way(self) -> int:
        """Where the policy says so, the last running request gives way to one that was refused and goes before it.

        If it is in flight, what it holds would not be free now: it sits out this step and is preempted in the
        next. Its slot then, else NOBODY.
        """
        residents = self._residents
        if not self._policy.displaces or not len(residents.running) or not len(residents.waiting):
            return NOBODY
        first, (key, victim) = residents.waiting.requests[0], residents.running.last
        if first.number != self._refused or self._policy.key(first) > key:
            return NOBODY
        if self._table.inflight_S[victim] > 0:
            return victim
        residents.preempt(victim)
        return NOBODY

    def fill(self, rows: StepRows) -> None:
        """Add the first chunk of every request that can start now."""
        while rows.budget > 0 and len(self._residents.waiting):
            if not self._has_slot():
                self._refused = self._residents.waiting.requests[0].number
                return
            request = self._next()
            self._refused = request.number
            if not self._start(request):
                return
            self._refused = NOBODY
            count = self._config.chunk(
                int(self._table.need(_one(request.slot))[0]), rows.budget, with_decodes=rows.has_decodes
            )
            extended = self._kv.extend(request.slot, int(self._table.scheduled_S[request.slot]) + count)
            assert extended, "admission has checked the pool"
            rows.add(_one(request.slot), _one(count), _one(0))

    def _has_slot(self) -> bool:
        residents = self._residents
        return residents.slots.num_free > 0 and len(residents.running) < self._config.max_num_seqs

    def _next(self) -> Request:
        waiting = self._residents.waiting.requests
        return waiting[self._policy.choose(waiting, self._cached)]

    def _cached(self, request: Request) -> int:
        return self._hit(request).num_tokens if request.reads_prefix_cache else 0

    def _hit(self, request: Request) -> PrefixHit:
        request.maybe_hit = self._kv.lookup(request.cacheable_L, request.cache_key, request.maybe_hit)
        return request.maybe_hit

    def _start(self, request: Request) -> bool:
        """Give `request` a slot if KV holds all its known tokens, and what running prompts still lack.

        One block for each running request stays free, so that a newcomer is not preempted at once.
        """
        residents, table = self._residents, self._table
        hit = self._hit(request) if request.reads_prefix_cache else None
        slot = residents.slots.take()
        running_R = residents.running.slots()
        partial_R = running_R[table.known_S[running_R] > table.scheduled_S[running_R]]
        slots_R = np.append(partial_R, _one(slot))
        upper_R = np.append(table.known_S[partial_R], _one(request.known_L.size))
        if not self._kv.has_room(slots_R, upper_R, spare=len(residents.running), hit=hit):
            residents.slots.give(slot)
            return False
        residents.start(request, slot, hit)
        return True


def _one(value: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array([value], dtype=np.int32)

"""Who is in the engine and what each holds: queue, slot, KV and sampling settings are taken and left in one place.

A slot and its KV go back to their pools only when the last submitted step that may touch them has settled.
"""

from __future__ import annotations

from isoinfer.engine.host_proposer import HostProposer
from isoinfer.engine.policy import Policy
from isoinfer.engine.queues import RunningOrder, WaitingQueue
from isoinfer.engine.request import NO_SLOT, Request
from isoinfer.engine.sampling_table import SamplingTable
from isoinfer.engine.slot_table import SlotTable
from isoinfer.engine.slots import SlotPool
from isoinfer.engine.stop_ids import StopIds
from isoinfer.kv.deferred_release import DeferredRelease
from isoinfer.kv.manager import KVManager
from isoinfer.kv.prefix_hit import PrefixHit


class Residents:
    """All unfinished requests. `last_step`: the last submitted step."""

    def __init__(
        self,
        table: SlotTable,
        kv: KVManager,
        sampling: SamplingTable,
        policy: Policy,
        vocab_size: int,
        proposer: HostProposer | None,
    ) -> None:
        self._table, self._kv, self._sampling, self._proposer = table, kv, sampling, proposer
        self.by_id: dict[str, Request] = {}
        self.waiting, self.running = WaitingQueue(policy), RunningOrder(policy)
        self.slots = SlotPool(table.number_S.size)
        self.stop_ids = StopIds(vocab_size)
        self.last_step = 0
        self.num_preemptions = 0
        self._released: DeferredRelease[int] = DeferredRelease(self.slots.give)
        self.settled(0)  # steps count from 1: what none has touched goes back at once

    def queue(self, request: Request) -> None:
        """A new request."""
        self.by_id[request.request_id] = request
        self.waiting.add(request)

    def at(self, slot: int) -> Request:
        """The request that holds `slot`."""
        request = self._table.requests[slot]
        assert request is not None, slot
        return request

    def start(self, request: Request, slot: int, hit: PrefixHit | None) -> None:
        """A waiting request runs in `slot` from now on, with the cached KV of `hit`."""
        self.waiting.remove(request)
        num_cached = self._kv.admit(slot, self._table.tokens(slot), request.cache_key, hit)
        replayed = self._kv.replay if num_cached else 0
        self._table.enter(slot, request, num_cached, replayed)
        request.slot, request.num_cached_tokens, request.maybe_hit = slot, num_cached - replayed, None
        self._sampling.add(slot, request)
        if self._proposer is not None:
            self._proposer.enter(slot, request.known_L.tolist())
        self.stop_ids.add(request.sampling.stop_token_ids)
        self.running.add(request)

    def preempt(self, slot: int) -> None:
        """Take everything from a running request; it waits again with the tokens it has."""
        request = self.at(slot)
        self._leave(request)
        request.epoch += 1
        self.waiting.add(request)
        self.num_preemptions += 1

    def retire(self, request: Request) -> None:
        """It has ended, wherever it was."""
        del self.by_id[request.request_id]
        if request.slot == NO_SLOT:
            self.waiting.remove(request)
        else:
            self._leave(request)

    def settled(self, step_id: int) -> None:
        """No step up to `step_id` touches anything any more."""
        self._settled_step = step_id
        self._kv.settled(step_id)
        self._released.settled(step_id)

    def _leave(self, request: Request) -> None:
        slot = request.slot
        self.running.remove(request)
        self.stop_ids.remove(request.sampling.stop_token_ids)
        if self._proposer is not None:
            self._proposer.leave(slot)
        self._table.leave(slot)
        fence = int(self._table.last_step_S[slot])
        self._kv.release(slot, fence)
        self._released.add(slot, fence)

    def check(self) -> None:
        """Assert that slots, queues and the table agree."""
        running = self.running.slots().tolist()
        assert len(set(running)) == len(running), "a slot runs twice"
        assert all(self.at(slot).slot == slot for slot in running)
        assert self.slots.num_free + len(running) + len(self._released) == self._table.number_S.size, "slots are lost"
        waiting = list(self.waiting.requests)
        assert all(request.slot == NO_SLOT for request in waiting)
        assert len(self.by_id) == len(waiting) + len(running), "a request is in no queue, or in two"

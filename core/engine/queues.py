"""The requests of a scheduler in the order of its policy: those that wait, and the slots of those that run."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from isoinfer.engine.messages import Int32Array
from isoinfer.engine.policy import Key, Policy
from isoinfer.engine.request import Request


class WaitingQueue:
    """Requests without a slot, by the policy's key. A preempted one returns to where its key puts it."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def requests(self) -> Sequence[Request]:
        """All, in order."""
        return self._requests

    def add(self, request: Request) -> None:
        """Let a request wait."""
        insort(self._requests, request, key=self._policy.key)

    def remove(self, request: Request) -> None:
        """It waits no more."""
        index = bisect_left(self._requests, self._policy.key(request), key=self._policy.key)
        assert self._requests[index] is request, request.request_id
        del self._requests[index]


class RunningOrder:
    """Slots in use, by the key of their requests."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._entries: list[tuple[Key, int]] = []
        self._maybe_slots_R: Int32Array | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, request: Request) -> None:
        """A request that has taken its slot."""
        insort(self._entries, (self._policy.key(request), request.slot))
        self._maybe_slots_R = None

    def remove(self, request: Request) -> None:
        """A request that is about to leave its slot."""
        self._entries.remove((self._policy.key(request), request.slot))
        self._maybe_slots_R = None

    @property
    def last(self) -> tuple[Key, int]:
        """Key and slot of whoever gives way first. There is one."""
        return self._entries[-1]

    def slots(self) -> Int32Array:
        """All slots in order."""
        if self._maybe_slots_R is None:
            listed = list(map(itemgetter(1), self._entries))
            self._maybe_slots_R = np.array(listed, dtype=np.int32)
        return self._maybe_slots_R

"""Who goes first: small classes that order requests and choose whom to admit. They hold no request.

`key` orders waiting and running requests; the running one with the largest key gives way first when KV
runs out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from isoinfer.engine.request import Request

Key = tuple[int, ...]
CachedTokens = Callable[[Request], int]


class Policy(Protocol):
    """An order of requests. `displaces`: a waiting request may take the place of a running one with a larger key."""

    displaces: bool

    def key(self, request: Request) -> Key: ...
    def choose(self, waiting: Sequence[Request], cached: CachedTokens) -> int:
        """Index of the one to admit next among `waiting`, which is in the order of `key` and not empty."""


class Fcfs:
    """First come, first served."""

    displaces = False

    def key(self, request: Request) -> Key:
        """By arrival."""
        return (request.number,)

    def choose(self, waiting: Sequence[Request], cached: CachedTokens) -> int:
        """The first."""
        return 0


class Priority:
    """Smaller `priority` numbers first, then by arrival."""

    displaces = True

    def key(self, request: Request) -> Key:
        """By priority and arrival."""
        return (request.priority, request.number)

    def choose(self, waiting: Sequence[Request], cached: CachedTokens) -> int:
        """The first."""
        return 0


class LongestPrefix:
    """Of the first few waiting requests, the one with the most cached tokens; a head is passed over only so often."""

    displaces = False
    LOOK_AHEAD = 32
    PATIENCE = 64

    def __init__(self) -> None:
        self._head, self._passed = -1, 0

    def key(self, request: Request) -> Key:
        """By arrival."""
        return (request.number,)

    def choose(self, waiting: Sequence[Request], cached: CachedTokens) -> int:
        """The longest cached prefix among the first LOOK_AHEAD; the head after PATIENCE others."""
        if waiting[0].number != self._head:
            self._head, self._passed = waiting[0].number, 0
        if self._passed >= self.PATIENCE:
            return 0
        lengths = [cached(request) for request in waiting[: self.LOOK_AHEAD]]
        best = lengths.index(max(lengths))
        self._passed += best != 0
        return best


POLICIES: dict[str, Callable[[], Policy]] = {
    "fcfs": Fcfs,
    "priority": Priority,
    "lpm": LongestPrefix,
    "two-phase": Fcfs,
}
"""By the names of the settings. What `two-phase` changes is the kind of each step."""


def make_policy(name: str) -> Policy:
    """The policy called `name`, which the settings have checked."""
    return POLICIES[name]()

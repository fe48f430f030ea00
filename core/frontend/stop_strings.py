"""Stop strings over a growing text: where one ends the text, and how much text could still become one.

The rule does not depend on how the text arrives: of all matches the one that is complete first counts, and
of those that complete at the same character the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """`text[start:end] == stop`."""

    start: int
    end: int
    stop: str


class StopStrings:
    """The stop strings of one request. Empty strings are not allowed; no strings never match."""

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), stops
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in stops), default=0)

    def __bool__(self) -> bool:
        return bool(self._stops)

    def find(self, text: str, num_old: int, floor: int = 0) -> StopMatch | None:
        """The first match that is not wholly inside `text[:num_old]` (searched before) nor begins below `floor`."""
        matches = []
        for stop in self._stops:
            start = text.find(stop, max(floor, num_old - len(stop) + 1, 0))
            if start >= 0:
                matches.append(StopMatch(start, start + len(stop), stop))
        return min(matches, key=lambda match: (match.end, match.start), default=None)

    def num_held(self, text: str, floor: int = 0) -> int:
        """How many characters at the end of `text` (from `floor` on) more text could turn into a stop string."""
        for start in range(max(floor, len(text) - self._longest + 1, 0), len(text)):
            tail = text[start:]
            if any(len(tail) < len(stop) and stop.startswith(tail) for stop in self._stops):
                return len(tail)
        return 0

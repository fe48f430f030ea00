"""What may go back only when a submitted step has settled: blocks, slots, anything that the step may still touch."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

NOTHING_SETTLED = -1


class DeferredRelease(Generic[T]):
    """Holds each item until its fence has settled, then hands it to `give_back`, exactly once.

    A fence is the id of the last submitted step that may touch the item. Items of one fence go back in the
    order in which they came. Adding an item that waits already is a programmer error.
    """

    def __init__(self, give_back: Callable[[T], None]) -> None:
        self._give_back = give_back
        self._waiting: dict[int, list[T]] = {}
        self._held: set[T] = set()
        self._settled = NOTHING_SETTLED

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, item: T) -> bool:
        return item in self._held

    def add(self, item: T, fence: int) -> None:
        """Give `item` back once step `fence` has settled: at once if it has."""
        assert item not in self._held, f"{item!r} is released twice"
        if fence <= self._settled:
            self._give_back(item)
            return
        self._held.add(item)
        self._waiting.setdefault(fence, []).append(item)

    def settled(self, step_id: int) -> None:
        """All steps up to `step_id` have settled: what waited for them goes back."""
        assert step_id >= self._settled, f"step {step_id} settled after step {self._settled}"
        self._settled = step_id
        for fence in sorted(fence for fence in self._waiting if fence <= step_id):
            for item in self._waiting.pop(fence):
                self._held.remove(item)
                self._give_back(item)

    def waiting(self) -> list[T]:
        """The items that have not gone back yet."""
        return [item for items in self._waiting.values() for item in items]

    def check(self) -> None:
        """Assert that each item waits once, and only for a step that has not settled."""
        assert all(fence > self._settled for fence in self._waiting), (sorted(self._waiting), self._settled)
        waiting = self.waiting()
        assert len(waiting) == len(self._held), "an item waits twice"
        assert set(waiting) == self._held, "an item is lost"

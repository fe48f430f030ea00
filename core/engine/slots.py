"""Stable slots: what outlives a step is addressed by a small number that a running request keeps."""

from __future__ import annotations


class SlotPool:
    """Hands out the slots 0 .. num_slots - 1: the one that came back last first, so that rows stay in the caches."""

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Slots that can be taken now."""
        return len(self._free)

    def take(self) -> int:
        """Take a slot. The caller has checked `num_free`."""
        return self._free.pop()

    def give(self, slot: int) -> None:
        """Give a slot back."""
        assert slot not in self._free, f"slot {slot} is free already"
        self._free.append(slot)

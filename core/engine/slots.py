"""Stable slots: what outlives a step is addressed by a small number that a running request keeps."""

from __future__ import annotations


class SlotPool:
    """Hands out the slots 0 .. num_slots - 1: the one that came back last first, so that rows stay in the caches."""

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots - 1, -1, -1))
        self._is_free = bytearray(b"\1") * num_slots

    @property
    def num_free(self) -> int:
        """Slots that can be taken now."""
        return len(self._free)

    def take(self) -> int:
        """Take a slot. The caller has checked `num_free`."""
        slot = self._free.pop()
        self._is_free[slot] = 0
        return slot

    def give(self, slot: int) -> None:
        """Give a slot back."""
        assert not self._is_free[slot], f"slot {slot} is free already"
        self._is_free[slot] = 1
        self._free.append(slot)


def slots_for(max_num_seqs: int, depth: int) -> int:
    """Slots for so many running requests. With a step in flight, those of the requests that just ended are held
    until it settles; a quarter more keeps newcomers from waiting for them."""
    return max_num_seqs if depth == 1 else max_num_seqs + -(-max_num_seqs // 4)

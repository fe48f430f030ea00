from __future__ import annotations

import pytest

from isoinfer.engine.slots import SlotPool


def test_every_slot_is_handed_out_once_and_again_after_it_came_back() -> None:
    pool = SlotPool(3)
    assert [pool.take() for _ in range(3)] == [0, 1, 2]
    assert pool.num_free == 0
    pool.give(1)
    assert (pool.num_free, pool.take(), pool.num_free) == (1, 1, 0)


def test_giving_a_slot_twice_is_a_programmer_error() -> None:
    pool = SlotPool(2)
    slot = pool.take()
    pool.give(slot)
    with pytest.raises(AssertionError, match="slot 0 is free already"):
        pool.give(slot)

"""Block tables by slot against a plain model: a list of tokens wanted per slot."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from isoinfer.kv.manager import KVManager

SLOTS = 4
MAX_LEN = 40


class ManagerMachine(RuleBasedStateMachine):
    """Random growth and release of slots over a pool that is usually too small for all."""

    @initialize(num_blocks=st.integers(2, 20), block_size=st.sampled_from([1, 4, 16]))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.kv = KVManager(num_blocks=num_blocks, block_size=block_size, num_slots=SLOTS, max_model_len=MAX_LEN)
        self.tables: list[list[int]] = [[] for _ in range(SLOTS)]

    @rule(slot=st.integers(0, SLOTS - 1), num_tokens=st.integers(0, MAX_LEN))
    def extend(self, slot: int, num_tokens: int) -> None:
        blocks = -(-num_tokens // self.kv.block_size)
        missing = max(0, blocks - len(self.tables[slot]))
        free = self.kv.pool.num_free
        assert self.kv.blocks_for(num_tokens) == blocks
        assert self.kv.missing(slot, num_tokens) == missing
        assert self.kv.extend(slot, num_tokens) is (missing <= free)
        if missing > free:
            assert self.kv.pool.num_free == free
            assert self.read(slot) == self.tables[slot]
            return
        grown = self.read(slot)
        assert grown[: len(self.tables[slot])] == self.tables[slot], "blocks that a slot has must stay where they are"
        assert len(grown) == len(self.tables[slot]) + missing
        self.tables[slot] = grown

    @rule(slot=st.integers(0, SLOTS - 1))
    def release(self, slot: int) -> None:
        self.kv.release(slot)
        self.tables[slot] = []

    @rule(slots=st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=6))
    def tables_of(self, slots: list[int]) -> None:
        table_RB = self.kv.tables(np.array(slots, dtype=np.int32))
        width = max(1, *(len(self.tables[slot]) for slot in slots))
        assert table_RB.dtype == np.int32
        assert table_RB.tolist() == [(self.tables[s] + [0] * width)[:width] for s in slots]
        table_RB[:] = -7  # a copy: plans are immutable
        assert self.read(slots[0]) == self.tables[slots[0]]

    @invariant()
    def nobody_shares(self) -> None:
        self.kv.pool.check()
        owned = [block for table in self.tables for block in table]
        assert 0 not in owned
        assert len(set(owned)) == len(owned)
        assert self.kv.pool.num_free == self.kv.pool.num_usable - len(owned)
        assert self.kv.usage == pytest.approx(len(owned) / self.kv.pool.num_usable)

    def read(self, slot: int) -> list[int]:
        row = self.kv.tables(np.array([slot], dtype=np.int32))[0].tolist()
        return [block for block in row if block]


TestManager = ManagerMachine.TestCase
TestManager.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_capacity_is_what_one_request_alone_could_hold() -> None:
    kv = KVManager(num_blocks=5, block_size=16, num_slots=2, max_model_len=64)
    assert kv.capacity == 64
    assert kv.extend(0, 64)
    assert kv.usage == 1.0
    assert not kv.extend(1, 1)

"""The pool against a plain model of it: a set of free and a set of owned ids."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from isoinfer.kv.block_pool import BlockPool


class PoolMachine(RuleBasedStateMachine):
    """Random allocations and frees; after each, every block is in exactly one place."""

    @initialize(num_blocks=st.integers(2, 12))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.owned: list[int] = []

    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, self.pool.num_free))
        taken = self.pool.allocate(count)
        assert len(taken) == count
        assert 0 not in taken
        assert not set(taken) & set(self.owned)
        assert set(taken) <= set(range(self.pool.num_blocks))
        self.owned += taken

    @rule()
    def allocate_too_many(self) -> None:
        with pytest.raises(AssertionError):
            self.pool.allocate(self.pool.num_free + 1)

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        given = data.draw(st.lists(st.sampled_from(self.owned), unique=True))
        self.pool.free(given)
        self.owned = [block for block in self.owned if block not in given]

    @invariant()
    def partition(self) -> None:
        self.pool.check()
        assert self.pool.num_usable == self.pool.num_blocks - 1
        assert self.pool.num_free == self.pool.num_usable - len(self.owned)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_freeing_twice_is_a_programmer_error() -> None:
    pool = BlockPool(4)
    (block,) = pool.allocate(1)
    pool.free([block])
    with pytest.raises(AssertionError, match=f"block {block} is not owned"):
        pool.free([block])


def test_block_0_can_never_be_freed() -> None:
    with pytest.raises(AssertionError, match="block 0 is not owned"):
        BlockPool(4).free([0])


def test_freed_blocks_are_reused_first() -> None:
    pool = BlockPool(8)
    first = pool.allocate(3)
    pool.free(first)
    assert pool.allocate(3) == first[::-1]


def test_check_sees_lost_and_doubled_blocks() -> None:
    lost = BlockPool(4)
    lost._free.pop()
    with pytest.raises(AssertionError, match="lost"):
        lost.check()
    twice = BlockPool(4)
    twice._free.append(twice._free[0])
    with pytest.raises(AssertionError, match="twice"):
        twice.check()


def test_a_pool_without_usable_blocks_is_a_programmer_error() -> None:
    with pytest.raises(AssertionError):
        BlockPool(1)

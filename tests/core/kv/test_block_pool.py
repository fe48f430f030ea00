"""The pool against a plain model of it: owners by block, what was deferred, and the order of eviction."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from isoinfer.kv.block_pool import BlockPool


class PoolMachine(RuleBasedStateMachine):
    """Random use; after each step every block is in exactly one place, and only what it should be is gone."""

    @initialize(num_blocks=st.integers(2, 12))
    def start(self, num_blocks: int) -> None:
        self.discarded: list[int] = []
        self.pool = BlockPool(num_blocks, self.discarded.extend)
        self.owners: Counter[int] = Counter()
        self.deferred: list[list[int]] = []
        self.kept: set[int] = set()
        self.lru: list[int] = []
        self.num_evictions = 0

    @property
    def held(self) -> set[int]:
        return {block for block in self.owners if self.owners[block]} | {b for blocks in self.deferred for b in blocks}

    def take_discarded(self) -> list[int]:
        taken = list(self.discarded)
        self.discarded.clear()
        return taken

    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        num_free = self.pool.num_usable - len(self.held)
        count = data.draw(st.integers(0, num_free))
        num_evicted = max(0, count - (num_free - len(self.lru)))
        taken = self.pool.allocate(count)
        evicted, self.lru = self.lru[:num_evicted], self.lru[num_evicted:]
        assert self.take_discarded() == evicted
        assert not set(taken) & (self.held | set(self.lru))
        assert set(evicted) <= set(taken)
        assert len(set(taken)) == count
        self.kept -= set(evicted)
        self.num_evictions += num_evicted
        self.owners.update(taken)

    @rule()
    def allocate_too_many(self) -> None:
        with pytest.raises(AssertionError):
            self.pool.allocate(self.pool.num_free + 1)

    @precondition(lambda self: +self.owners)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(+self.owners)))
        self.pool.keep(block)
        self.kept.add(block)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(self.kept)), unique=True))
        assert self.pool.num_unowned(blocks) == len(set(blocks) & set(self.lru))
        self.pool.share(blocks)
        self.owners.update(blocks)
        self.lru = [block for block in self.lru if block not in blocks]

    @precondition(lambda self: +self.owners)
    @rule(data=st.data())
    def defer(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(sorted(+self.owners)), unique=True))
        self.pool.defer(blocks)
        self.owners.subtract(blocks)
        self.deferred.append(blocks)

    @precondition(lambda self: self.deferred)
    @rule(which=st.integers(0, 9))
    def drop(self, which: int) -> None:
        blocks = self.deferred.pop(which % len(self.deferred))
        self.pool.drop(blocks)
        gone = [block for block in reversed(blocks) if block not in self.held]
        self.lru += [block for block in gone if block in self.kept]
        assert self.take_discarded() == [block for block in gone if block not in self.kept]

    @invariant()
    def partition(self) -> None:
        deferred = Counter(block for blocks in self.deferred for block in blocks)
        ids = range(self.pool.num_blocks)
        self.pool.check([self.owners[block] for block in ids], [deferred[block] for block in ids])
        assert self.pool.num_usable == self.pool.num_blocks - 1
        assert self.pool.num_free == self.pool.num_usable - len(self.held)
        assert self.pool.num_cached == len(self.lru)
        assert self.pool.num_pending == sum(not self.owners[block] for block in self.held)
        assert self.pool.num_evictions == self.num_evictions
        assert self.pool.kept() == self.kept


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def pool_of(num_blocks: int) -> BlockPool:
    return BlockPool(num_blocks, lambda blocks: None)


def give_back(pool: BlockPool, blocks: list[int]) -> None:
    pool.defer(blocks)
    pool.drop(blocks)


def test_freeing_twice_is_a_programmer_error() -> None:
    pool = pool_of(4)
    (block,) = pool.allocate(1)
    give_back(pool, [block])
    with pytest.raises(AssertionError, match=f"block {block} is not owned"):
        pool.defer([block])
    with pytest.raises(AssertionError, match=f"block {block} is not deferred"):
        pool.drop([block])


def test_only_kept_blocks_can_be_shared_and_only_owned_ones_kept() -> None:
    pool = pool_of(4)
    (block,) = pool.allocate(1)
    with pytest.raises(AssertionError, match="not kept"):
        pool.share([block])
    give_back(pool, [block])
    with pytest.raises(AssertionError, match="not owned"):
        pool.keep(block)


def test_block_0_can_never_be_freed() -> None:
    with pytest.raises(AssertionError, match="block 0 is not owned"):
        pool_of(4).defer([0])


def test_freed_blocks_are_reused_first_and_cached_ones_last() -> None:
    pool = pool_of(8)
    first = pool.allocate(4)
    pool.keep(first[1])
    give_back(pool, first)
    assert pool.allocate(3) == [first[0], first[2], first[3]]
    assert pool.allocate(3)[-1] == 7
    assert pool.allocate(1) == [first[1]]


def test_check_sees_lost_and_doubled_blocks_and_wrong_counts() -> None:
    lost = pool_of(4)
    lost._free.pop()
    with pytest.raises(AssertionError, match="not a partition"):
        lost.check([0] * 4, [0] * 4)
    twice = pool_of(4)
    twice._free.append(twice._free[0])
    with pytest.raises(AssertionError, match="not a partition"):
        twice.check([0] * 4, [0] * 4)
    owned = pool_of(4)
    owned.allocate(1)
    with pytest.raises(AssertionError, match="counted wrong"):
        owned.check([0] * 4, [0] * 4)


def test_a_pool_without_usable_blocks_is_a_programmer_error() -> None:
    with pytest.raises(AssertionError):
        pool_of(1)

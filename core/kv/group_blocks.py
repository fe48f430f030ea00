"""One KV group: its pool of blocks, the table of each slot, and the names of published blocks.

A table entry is 0 before the first block that the slot still holds (the window has passed, or a prefix hit did
not need it) and after the last. Suffixes: S slots, R rows, B blocks of a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from isoinfer.backends.interface import Int32Array
from isoinfer.kv.block_pool import BlockPool
from isoinfer.kv.prefix_cache import PrefixCache

IntArray = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroup:
    """Layers that share block tables and a pool. `num_blocks` includes block 0. `window` in tokens, None = all."""

    name: str
    num_blocks: int
    window: int | None = None


class GroupBlocks:
    """The blocks of a group by slot. It trusts its manager for how many blocks each slot's table has.

    `on_discard(blocks)`: the contents of these blocks are given up.
    """

    def __init__(
        self,
        group: KVGroup,
        *,
        block_size: int,
        num_slots: int,
        num_columns: int,
        step_tokens: int,
        verify_tokens: bool,
        on_discard: Callable[[Sequence[int]], None],
    ) -> None:
        assert group.window is None or group.window >= 1, group
        self.name = group.name
        self.window = group.window
        self.block_size = block_size
        self.most_held = self._most_held(num_columns, step_tokens)
        self.cache = PrefixCache(keep_tokens=verify_tokens)
        self.pool = BlockPool(group.num_blocks, self._discard)
        self._on_discard = on_discard
        self.table_SB: Int32Array = np.zeros((num_slots, num_columns), dtype=np.int32)
        self.first_S = np.zeros(num_slots, dtype=np.int64)

    def first_visible(self, position: int) -> int:
        """The first block that a query at `position` can see."""
        return 0 if self.window is None else max(0, position - self.window + 1) // self.block_size

    def visible(self, names: Sequence[bytes], num: int) -> list[int]:
        """The cached blocks that a query after the first `num` named blocks sees."""
        return [self.cache[name] for name in names[self.first_visible(num * self.block_size) : num]]

    def extend(self, slot: int, start: int, end: int) -> None:
        """New blocks for the places `start` to `end` of the slot's table."""
        self.table_SB[slot, start:end] = self.pool.allocate(end - start)

    def take_over(self, slot: int, blocks: Sequence[int], end: int) -> None:
        """An empty slot gets published blocks at the last places before `end`."""
        self.pool.share(blocks)
        first = end - len(blocks)
        self.table_SB[slot, first:end] = blocks
        self.first_S[slot] = first

    def publish(self, slot: int, start: int, names: Sequence[bytes], tokens: Sequence[bytes]) -> None:
        """The contents of the slot's blocks from place `start` on are final and have these names."""
        blocks = self.table_SB[slot, start : start + len(names)].tolist()
        for block, name, content in zip(blocks, names, tokens, strict=True):
            assert block, "a block must be published before the window passes it"
            if self.cache.publish(name, block, content):
                self.pool.keep(block)

    def pass_window(self, slots_R: IntArray, confirmed_R: IntArray) -> list[int]:
        """Take what no query from `confirmed_R` on can see out of the tables. Empty for a group without window."""
        if self.window is None:
            return []
        first_R = np.maximum(confirmed_R - (self.window - 1), 0) // self.block_size
        passed: list[int] = []
        for row in np.flatnonzero(first_R > self.first_S[slots_R]).tolist():
            slot, end = int(slots_R[row]), int(first_R[row])
            places = slice(int(self.first_S[slot]), end)
            passed += self.table_SB[slot, places].tolist()
            self.table_SB[slot, places] = 0
            self.first_S[slot] = end
        return passed

    def clear(self, slot: int, end: int) -> list[int]:
        """Take everything out of the slot's table, which has `end` places."""
        start = int(self.first_S[slot])
        blocks: list[int] = self.table_SB[slot, start:end].tolist()
        self.table_SB[slot, start:end] = 0
        self.first_S[slot] = 0
        return blocks

    def check(self, count_S: IntArray, waiting: Sequence[int]) -> None:
        """Assert that tables, pool and names agree. `waiting`: blocks of releases that have not gone back."""
        column_B = np.arange(self.table_SB.shape[1])
        held_SB = (column_B >= self.first_S[:, None]) & (column_B < count_S[:, None])
        assert ((self.table_SB > 0) == held_SB).all(), f"group {self.name}: a table has holes"
        owners_B = np.bincount(self.table_SB[held_SB], minlength=self.pool.num_blocks)
        deferred_B = np.bincount(np.array(waiting, dtype=np.int64), minlength=self.pool.num_blocks)
        self.pool.check(owners_B.tolist(), deferred_B.tolist())
        self.cache.check()
        assert self.pool.kept() == set(self.cache.published()), "published blocks and kept blocks differ"

    def _most_held(self, num_columns: int, step_tokens: int) -> int:
        """Blocks that a slot needs at most at a time: what the queries of one step see may begin anywhere."""
        if self.window is None:
            return num_columns
        num_visible = self.window - 1 + step_tokens
        return min(num_columns, (num_visible - 2) // self.block_size + 2)

    def _discard(self, blocks: Sequence[int]) -> None:
        self.cache.forget(blocks)
        self._on_discard(blocks)

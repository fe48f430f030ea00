"""The pool of KV blocks: which ids are owned, cached, pending or free. It knows no request and no tensor.

    free     nobody needs it. Reused last in, first out, so that a small working set stays in the caches
    owned    at least one slot refers to it, several where a prefix is shared
    pending  no slot refers to it any more, but a submitted step may still touch it
    cached   nobody refers to it, but its contents have a name and are kept: least recently used first to go

Block 0 is never handed out: padded table entries point at it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence


class BlockPool:
    """Ids 1 .. num_blocks - 1, each in exactly one of {free, owned, pending, cached}.

    `on_discard(blocks)`: the contents of these blocks are given up, because they were freed or evicted.
    """

    def __init__(self, num_blocks: int, on_discard: Callable[[Sequence[int]], None]) -> None:
        assert num_blocks >= 2, num_blocks
        self.num_blocks = num_blocks
        self.num_pending = 0
        self.num_evictions = 0
        self._on_discard = on_discard
        self._free = list(range(num_blocks - 1, 0, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._kept = bytearray(num_blocks)
        self._owners = [0] * num_blocks
        self._deferred = [0] * num_blocks

    @property
    def num_usable(self) -> int:
        """Blocks that requests can own in all."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody owns and whose contents are kept."""
        return len(self._cached)

    def num_unowned(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` count as free now: `share` would take them from there."""
        return sum(block in self._cached for block in blocks)

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, free ones first, then the least recently used cached ones.

        The caller has checked `num_free`.
        """
        assert count <= self.num_free, (count, self.num_free)
        taken = [self._free.pop() for _ in range(min(count, len(self._free)))]
        if evicted := [self._cached.popitem(last=False)[0] for _ in range(count - len(taken))]:
            self._discard(evicted)
            self.num_evictions += len(evicted)
            taken += evicted
        for block in taken:
            self._owners[block] = 1
        return taken

    def keep(self, block: int) -> None:
        """The contents of an owned block got a name: they stay when nobody owns it any more."""
        assert self._owners[block], f"block {block} is not owned"
        self._kept[block] = 1

    def share(self, blocks: Iterable[int]) -> None:
        """One owner more of blocks whose contents are kept, wherever they are now."""
        for block in blocks:
            assert self._kept[block], f"the contents of block {block} are not kept"
            if not self._owners[block]:
                if self._deferred[block]:
                    self.num_pending -= 1
                else:
                    del self._cached[block]
            self._owners[block] += 1

    def defer(self, blocks: Iterable[int]) -> None:
        """One owner less, but the blocks stay until `drop`. Giving one up twice is a programmer error."""
        for block in blocks:
            assert self._owners[block], f"block {block} is not owned"
            self._owners[block] -= 1
            self._deferred[block] += 1
            self.num_pending += not self._owners[block]

    def drop(self, blocks: Sequence[int]) -> None:
        """Deferred blocks may go now. `blocks` in the order of their tokens: later ones are evicted first."""
        freed = []
        for block in reversed(blocks):
            assert self._deferred[block], f"block {block} is not deferred"
            self._deferred[block] -= 1
            if self._owners[block] or self._deferred[block]:
                continue
            self.num_pending -= 1
            if self._kept[block]:
                self._cached[block] = None
            else:
                freed.append(block)
        if freed:
            self._free += freed
            self._discard(freed)

    def kept(self) -> set[int]:
        """Blocks whose contents have a name, for invariant checks."""
        return {block for block, kept in enumerate(self._kept) if kept}

    def check(self, owners: Sequence[int], deferred: Sequence[int]) -> None:
        """Assert the partition, and that every block has the owners and deferred owners that it should have."""
        assert self._owners == list(owners), "owners are counted wrong"
        assert self._deferred == list(deferred), "deferred owners are counted wrong"
        held = [block for block in range(self.num_blocks) if owners[block] or deferred[block]]
        assert sorted([*held, *self._free, *self._cached]) == list(range(1, self.num_blocks)), "not a partition"
        assert self.num_pending == sum(not owners[block] for block in held), "pending blocks are counted wrong"
        assert all(self._kept[block] for block in self._cached), "a cached block is not kept"
        assert not any(self._kept[block] for block in self._free), "a free block is kept"
        assert all(self._kept[block] for block in held if owners[block] > 1), "a shared block is not kept"

    def _discard(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._kept[block] = 0
        self._on_discard(blocks)

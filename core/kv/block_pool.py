"""The pool of KV blocks: which ids are free and which are owned. It knows no request and no tensor.

Block 0 is never handed out: padded table entries point at it. Freed blocks are reused last in, first
out, so that a small working set stays in the caches.
"""

from __future__ import annotations

from collections.abc import Sequence


class BlockPool:
    """Ids 1 .. num_blocks - 1, each in exactly one of {free, owned}."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 2, num_blocks
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, 0, -1))
        self._owned = bytearray(num_blocks)

    @property
    def num_usable(self) -> int:
        """Blocks that requests can own in all."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks. The caller has checked `num_free`."""
        assert count <= len(self._free), (count, len(self._free))
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._owned[block] = 1
        return taken

    def free(self, blocks: Sequence[int]) -> None:
        """Give owned blocks back. Freeing a block twice is a programmer error."""
        for block in blocks:
            assert self._owned[block], f"block {block} is not owned"
            self._owned[block] = 0
            self._free.append(block)

    def check(self) -> None:
        """Assert the partition: every block but 0 is free or owned, none is both."""
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        assert sum(self._owned) + len(self._free) == self.num_usable, "blocks are lost"
        assert not any(self._owned[block] for block in self._free), "a free block is owned"

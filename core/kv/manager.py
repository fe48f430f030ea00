"""KV of running requests: which blocks each slot holds, as one table that plans take rows from.

It decides nothing about who runs. Suffixes: S slots, B blocks of a slot.
"""

from __future__ import annotations

import numpy as np

from isoinfer.backends.interface import Int32Array
from isoinfer.kv.block_pool import BlockPool


class KVManager:
    """Block tables by slot over one pool."""

    def __init__(self, *, num_blocks: int, block_size: int, num_slots: int, max_model_len: int) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self._table_SB = np.zeros((num_slots, self.blocks_for(max_model_len)), dtype=np.int32)
        self._count_S = np.zeros(num_slots, dtype=np.int32)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens`."""
        return -(-num_tokens // self.block_size)

    @property
    def capacity(self) -> int:
        """Tokens that one request could hold if it were alone."""
        return self.pool.num_usable * self.block_size

    def missing(self, slot: int, num_tokens: int) -> int:
        """Blocks that `slot` lacks to hold `num_tokens`."""
        return max(0, self.blocks_for(num_tokens) - int(self._count_S[slot]))

    def extend(self, slot: int, num_tokens: int) -> bool:
        """Make `slot` hold `num_tokens`. False, and nothing changes, if the pool has too few blocks."""
        need = self.missing(slot, num_tokens)
        if need == 0:
            return True
        if need > self.pool.num_free:
            return False
        count = int(self._count_S[slot])
        self._table_SB[slot, count : count + need] = self.pool.allocate(need)
        self._count_S[slot] = count + need
        return True

    def release(self, slot: int) -> None:
        """Free every block of `slot`."""
        count = int(self._count_S[slot])
        self.pool.free(self._table_SB[slot, :count].tolist())
        self._table_SB[slot, :count] = 0
        self._count_S[slot] = 0

    def tables(self, slots: Int32Array) -> Int32Array:
        """A copy of the tables of `slots`, as wide as the widest."""
        width = int(self._count_S[slots].max(initial=1))
        table_RB: Int32Array = self._table_SB[slots, :width]
        return table_RB

    @property
    def usage(self) -> float:
        """Share of the pool that is owned, 0 to 1."""
        return 1.0 - self.pool.num_free / self.pool.num_usable

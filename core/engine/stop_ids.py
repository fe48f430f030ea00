"""Which tokens end any running request: one look-up says for a whole step where to look closer.

Suffixes: V vocabulary, G rows, J new tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isoinfer.engine.messages import Int32Array
from isoinfer.engine.plan import BoolArray


class StopIds:
    """How many running requests stop at each token id. Ids outside the vocabulary can never occur and are left out."""

    def __init__(self, vocab_size: int) -> None:
        self._count_V = np.zeros(vocab_size, dtype=np.int32)

    def add(self, ids: Sequence[int]) -> None:
        """A request with these stop ids starts."""
        np.add.at(self._count_V, self._valid(ids), 1)

    def remove(self, ids: Sequence[int]) -> None:
        """It ends."""
        np.subtract.at(self._count_V, self._valid(ids), 1)

    def may_end(self, token_GJ: Int32Array) -> BoolArray:
        """For each row, whether one of its tokens ends somebody."""
        ends_GJ: BoolArray = self._count_V[token_GJ] > 0
        may_G: BoolArray = np.logical_or.reduce(ends_GJ, axis=1)
        return may_G

    def _valid(self, ids: Sequence[int]) -> Int32Array:
        return np.array([i for i in ids if 0 <= i < self._count_V.size], dtype=np.int32)

"""Reading a window from rings: rows read the ring as it was before the step and their own new words, then write.

Suffixes: R rows, T new tokens, F positions seen by all rows, B rings, S places in a ring.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isoinfer.backends.interface import Int32Array, RingBatch
from isoinfer.backends.sim.fingerprint import POISON, UInt64Array
from isoinfer.backends.sim.reading import CanaryError, Int64Array, Rows, range_sums, rows_of

_WRITTEN = np.uint64(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingReading:
    """Positions seen, in row order: the older ones of each row, then its new ones.

    `new_F`: index of a new token, or -1 for an older position, which lies at `place_F` of ring `ring_F`.
    """

    rows: Rows
    new_F: Int64Array
    ring_F: Int64Array
    place_F: Int64Array
    factor_F: UInt64Array
    lower_T: Int64Array
    last_T: Int64Array
    ring_T: Int32Array
    place_T: Int64Array

    @property
    def num_words(self) -> int:
        """Words that somebody sees."""
        return int(self.new_F.size)

    def exchange(self, words_BS: UInt64Array, word_T: UInt64Array) -> UInt64Array:
        """Read the rings, then write those new words that are kept."""
        is_old_F = self.new_F < 0
        words_F = np.where(is_old_F, words_BS[self.ring_F, self.place_F], word_T[self.new_F])
        stale_F = (words_F & _WRITTEN) == 0
        if stale_F.any():
            self._raise(int(stale_F.argmax()), words_F)
        is_kept_T = self.ring_T < words_BS.shape[0] - 1  # the last ring is scratch
        words_BS[self.ring_T[is_kept_T], self.place_T[is_kept_T]] = word_T[is_kept_T]
        return words_F

    def sums(self, words_F: UInt64Array) -> UInt64Array:
        """Of each new token, over its window."""
        return range_sums(words_F, self.factor_F, self.lower_T, self.last_T)

    def _raise(self, index: int, words_F: UInt64Array) -> None:
        state = "discarded" if words_F[index] == POISON else "never written"
        raise CanaryError(f"place {self.place_F[index]} of ring {self.ring_F[index]} is read and was {state}")


def ring_reading(batch: RingBatch, num_tokens: int, *, window: int, ring: int, multipliers: UInt64Array) -> RingReading:
    """Places of one group. CanaryError where lengths or floors cannot be."""
    rows = rows_of(batch.query_len_R, batch.kv_len_R.numpy(), num_tokens)
    start_R, floor_R = (rows.kv_len_R - rows.query_len_R).astype(np.int64), batch.floor_R.numpy()
    if (floor_R > start_R).any():
        row = int((floor_R > start_R).argmax())
        raise CanaryError(f"row {row}: floor {floor_R[row]} lies behind its first new position {start_R[row]}")
    first_R = np.maximum(start_R - (window - 1), np.maximum(floor_R, 0))
    count_R = rows.kv_len_R - first_R
    before_R = count_R.cumsum() - count_R
    row_F = np.arange(rows.num_rows).repeat(count_R)
    position_F = np.arange(row_F.size) + (first_R - before_R)[row_F]
    first_new_R = rows.query_len_R.cumsum() - rows.query_len_R
    is_new_F = position_F >= start_R[row_F]
    base_T = (before_R - first_R)[rows.row_T]
    lower_T = np.maximum(rows.position_T - (window - 1), first_R[rows.row_T])
    return RingReading(
        rows=rows,
        new_F=np.where(is_new_F, position_F + (first_new_R - start_R)[row_F], -1),
        ring_F=batch.ring_R.numpy().astype(np.int64)[row_F],
        place_F=position_F % ring,
        factor_F=multipliers[position_F],
        lower_T=base_T + lower_T,
        last_T=base_T + rows.position_T,
        ring_T=batch.ring_T.numpy(),
        place_T=batch.positions_T.numpy().astype(np.int64) % ring,
    )

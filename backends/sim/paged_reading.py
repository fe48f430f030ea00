"""Reading through block tables: new words are written first, then all rows read.

Suffixes: R rows, T new tokens, B blocks of a row, P blocks read by all rows, S tokens in a block, F = P x S.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from isoinfer.backends.interface import Int32Array
from isoinfer.backends.sim.fingerprint import POISON, UInt64Array
from isoinfer.backends.sim.kv import NOBODYS_BLOCK, SimAttentionPlan
from isoinfer.backends.sim.reading import CanaryError, Int64Array, Rows, range_sums, rows_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedReading:
    """Blocks read, in row order. `factor_F` is 0, and the written mark in `seen_F` too, where nobody looks."""

    rows: Rows
    slots_T: Int32Array
    block_P: Int64Array
    row_P: Int64Array
    seen_F: UInt64Array
    factor_F: UInt64Array
    lower_T: Int64Array
    last_T: Int64Array

    @property
    def num_words(self) -> int:
        """Words that somebody sees."""
        return int(self.seen_F.sum())

    def exchange(self, words_BS: UInt64Array, word_T: UInt64Array) -> UInt64Array:
        """Write to the slots, then read the blocks."""
        words_BS.reshape(-1)[self.slots_T] = word_T
        words_F = words_BS[self.block_P].reshape(-1)
        stale_F = (words_F & self.seen_F) != self.seen_F
        if stale_F.any():
            self._raise(int(stale_F.argmax()), words_F, words_BS.shape[1])
        return words_F

    def sums(self, words_F: UInt64Array) -> UInt64Array:
        """Of each new token, over its window."""
        return range_sums(words_F, self.factor_F, self.lower_T, self.last_T)

    def _raise(self, place: int, words_F: UInt64Array, block_size: int) -> None:
        block, row = int(self.block_P[place // block_size]), int(self.row_P[place // block_size])
        state = "discarded" if words_F[place] == POISON else "never written"
        slot = block * block_size + place % block_size
        raise CanaryError(f"row {row} reads slot {slot} of block {block}, which was {state}")


def paged_reading(
    plan: SimAttentionPlan,
    slots_T: torch.Tensor,
    *,
    window: int | None,
    block_size: int,
    multipliers: UInt64Array,
) -> PagedReading:
    """Places of one group. CanaryError where lengths, tables or slots cannot be."""
    rows = rows_of(plan.query_len_R, plan.kv_len_device_R.numpy(), slots_T.numel())
    _check_bounds(plan, rows.kv_len_R)
    first_R = np.zeros(rows.num_rows, dtype=np.int64)
    if window is not None:
        first_R = np.maximum(rows.kv_len_R - rows.query_len_R - (window - 1), 0).astype(np.int64)
    first_block_R = first_R // block_size
    count_R = (rows.kv_len_R - 1) // block_size + 1 - first_block_R
    before_R = count_R.cumsum() - count_R
    row_P = np.arange(rows.num_rows).repeat(count_R)
    index_P = np.arange(row_P.size) - (before_R - first_block_R)[row_P]
    position_PS = index_P[:, None] * block_size + np.arange(block_size)
    seen_PS = (position_PS < rows.kv_len_R[row_P][:, None]) & (position_PS >= first_R[row_P][:, None])
    seen_F = seen_PS.astype(np.uint64).reshape(-1)
    base_T = ((before_R - first_block_R) * block_size)[rows.row_T]
    start_T = 0 if window is None else np.maximum(rows.position_T - (window - 1), 0)
    return PagedReading(
        rows=rows,
        slots_T=_slots(slots_T),
        block_P=_blocks(plan.block_table_RB.numpy(), row_P, index_P),
        row_P=row_P,
        seen_F=seen_F,
        factor_F=multipliers[position_PS].reshape(-1) * seen_F,
        lower_T=base_T + start_T,
        last_T=base_T + rows.position_T,
    )


def _check_bounds(plan: SimAttentionPlan, kv_len_R: Int32Array) -> None:
    if (kv_len_R > plan.kv_len_upper_R).any():
        row = int((kv_len_R > plan.kv_len_upper_R).argmax())
        raise CanaryError(
            f"row {row}: the device's KV length {kv_len_R[row]} is longer than the host's upper bound "
            f"{plan.kv_len_upper_R[row]}"
        )
    host_R = plan.maybe_kv_len_host_R
    if host_R is not None and not np.array_equal(host_R, kv_len_R):
        raise CanaryError(f"exact host lengths {host_R.tolist()} differ from the device's {kv_len_R.tolist()}")


def _slots(slots_T: torch.Tensor) -> Int32Array:
    """What is written to the block that nobody owns is thrown away: nobody may read it."""
    slots: Int32Array = slots_T.numpy()
    if slots.size and int(slots.min()) < 0:
        raise CanaryError(f"new token {int(slots.argmin())} writes to slot {int(slots.min())}")
    return slots


def _blocks(table_RB: Int32Array, row_P: Int64Array, index_P: Int64Array) -> Int64Array:
    width = table_RB.shape[1]
    if index_P.size and int(index_P.max()) >= width:
        row = int(row_P[index_P.argmax()])
        raise CanaryError(f"row {row} needs block {int(index_P.max())} of its table, which has {width} entries")
    block_P = table_RB[row_P, index_P]
    if (block_P == NOBODYS_BLOCK).any():
        place = int((block_P == NOBODYS_BLOCK).argmax())
        raise CanaryError(f"row {row_P[place]} reads entry {index_P[place]} of its table, which names no block")
    return block_P.astype(np.int64)

"""What attention reads in one group in one step: the places, worked out once from the device's own inputs.

As real attention does, it knows only table, lengths and query lengths. A sum over the words read, each times
its position's multiplier, stands for the attention's result; sums over ranges come from one running sum.
Suffixes: R rows, T new tokens, B blocks of a row, F blocks read by all rows, S tokens in a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from isoinfer.backends.interface import Int32Array
from isoinfer.backends.sim.fingerprint import POISON, UInt64Array
from isoinfer.backends.sim.kv import NOBODYS_BLOCK, SimAttentionPlan

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
_WRITTEN = np.uint64(1)


class CanaryError(RuntimeError):
    """The step touched KV that it must not, or its lengths cannot be: a fault of the engine's core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Lengths of the rows, and of each new token its row and where it is."""

    num_rows: int
    query_len_R: Int32Array
    kv_len_R: Int32Array
    row_T: Int64Array
    position_T: Int64Array


def rows_of(plan: SimAttentionPlan, num_tokens: int) -> Rows:
    """Read the plan. CanaryError where its lengths contradict each other."""
    query_len_R, kv_len_R = plan.query_len_R, plan.kv_len_device_R.numpy()
    num_rows = query_len_R.size
    _check_lengths(plan, kv_len_R, num_tokens)
    row_T = np.arange(num_rows)
    if num_rows == num_tokens:
        position_T = kv_len_R.astype(np.int64) - 1
    else:
        row_T = row_T.repeat(query_len_R)
        end_R = query_len_R.cumsum()
        position_T = np.arange(num_tokens) + (kv_len_R - end_R)[row_T]
    return Rows(num_rows=num_rows, query_len_R=query_len_R, kv_len_R=kv_len_R, row_T=row_T, position_T=position_T)


def _check_lengths(plan: SimAttentionPlan, kv_len_R: Int32Array, num_tokens: int) -> None:
    query_len_R, host_R = plan.query_len_R, plan.maybe_kv_len_host_R
    if int(query_len_R.sum()) != num_tokens:
        raise CanaryError(f"query lengths sum to {int(query_len_R.sum())}, but the step has {num_tokens} tokens")
    if query_len_R.size == num_tokens and not (query_len_R == 1).all():
        raise CanaryError(f"query lengths {query_len_R.tolist()}: every row needs at least one token")
    for name, wrong_R in (
        ("shorter than its new tokens", kv_len_R < query_len_R),
        ("longer than the host's upper bound", kv_len_R > plan.kv_len_upper_R),
    ):
        if wrong_R.any():
            row = int(wrong_R.argmax())
            raise CanaryError(
                f"row {row}: the device's KV length {kv_len_R[row]} is {name} "
                f"({query_len_R[row]} new, at most {plan.kv_len_upper_R[row]})"
            )
    if host_R is not None and not np.array_equal(host_R, kv_len_R):
        raise CanaryError(f"exact host lengths {host_R.tolist()} differ from the device's {kv_len_R.tolist()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Blocks read, in row order, and of each new token the range it sees, in words of these blocks.

    `factor_FS` is 0 and `seen_FS` False where no token of the row looks. `last_T`: the place of the token itself.
    """

    block_F: Int64Array
    row_F: Int64Array
    seen_FS: UInt64Array
    factor_FS: UInt64Array
    lower_T: Int64Array
    last_T: Int64Array

    @property
    def num_words(self) -> int:
        """Words that somebody sees."""
        return int(self.seen_FS.sum())

    def read(self, words_BS: UInt64Array) -> UInt64Array:
        """The words of the blocks, `[F, S]`. CanaryError for one that is seen and was not written by its owner."""
        words_FS = words_BS[self.block_F]
        stale_FS = (words_FS & self.seen_FS) != self.seen_FS
        if stale_FS.any():
            raise CanaryError(self._describe(words_FS, stale_FS))
        return words_FS

    def sums(self, words_FS: UInt64Array) -> UInt64Array:
        """Of each new token, the sum over what it sees."""
        running = np.zeros(words_FS.size + 1, dtype=np.uint64)
        np.cumsum(words_FS * self.factor_FS, out=running[1:])
        sum_T: UInt64Array = running[self.last_T + 1] - running[self.lower_T]
        return sum_T

    def _describe(self, words_FS: UInt64Array, stale_FS: BoolArray) -> str:
        place, offset = (int(index[0]) for index in stale_FS.nonzero())
        block, size = int(self.block_F[place]), words_FS.shape[1]
        state = "discarded" if words_FS[place, offset] == POISON else "never written"
        return f"row {self.row_F[place]} reads slot {block * size + offset} of block {block}, which was {state}"


def reading_of(
    rows: Rows, table_RB: Int32Array, *, window: int | None, block_size: int, multipliers: UInt64Array
) -> Reading:
    """Places of one group. CanaryError where a table is too short or names the block that nobody owns."""
    first_R = np.zeros(rows.num_rows, dtype=np.int64)
    if window is not None:
        first_R = np.maximum(rows.kv_len_R - rows.query_len_R - (window - 1), 0).astype(np.int64)
    first_block_R = first_R // block_size
    count_R = (rows.kv_len_R - 1) // block_size + 1 - first_block_R
    before_R = count_R.cumsum() - count_R
    row_F = np.arange(rows.num_rows).repeat(count_R)
    index_F = np.arange(row_F.size) - (before_R - first_block_R)[row_F]
    block_F = _blocks(table_RB, row_F, index_F)
    position_FS = index_F[:, None] * block_size + np.arange(block_size)
    seen_FS = (position_FS < rows.kv_len_R[row_F][:, None]) & (position_FS >= first_R[row_F][:, None])
    seen_FS = seen_FS.astype(np.uint64)
    base_T = ((before_R - first_block_R) * block_size)[rows.row_T]
    start_T = 0 if window is None else np.maximum(rows.position_T - (window - 1), 0)
    return Reading(
        block_F=block_F,
        row_F=row_F,
        seen_FS=seen_FS,
        factor_FS=multipliers[position_FS] * seen_FS,
        lower_T=base_T + start_T,
        last_T=base_T + rows.position_T,
    )


def _blocks(table_RB: Int32Array, row_F: Int64Array, index_F: Int64Array) -> Int64Array:
    width = table_RB.shape[1]
    if index_F.size and int(index_F.max()) >= width:
        row = int(row_F[index_F.argmax()])
        raise CanaryError(f"row {row} needs block {int(index_F.max())} of its table, which has {width} entries")
    block_F = table_RB[row_F, index_F]
    if (block_F == NOBODYS_BLOCK).any():
        place = int((block_F == NOBODYS_BLOCK).argmax())
        raise CanaryError(f"row {row_F[place]} reads entry {index_F[place]} of its table, which names no block")
    return block_F.astype(np.int64)

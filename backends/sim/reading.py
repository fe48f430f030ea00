"""What a step reads and writes: the rows' lengths, and sums over ranges of the words that attention sees.

As real attention does, it knows only tables, lengths and query lengths. A sum over the words read, each times
its position's multiplier, stands for the attention's result; sums over ranges come from one running sum.
Suffixes: R rows, T new tokens, F words of all rows in a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from isoinfer.backends.interface import Int32Array
from isoinfer.backends.sim.fingerprint import UInt64Array

Int64Array = npt.NDArray[np.int64]


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


class Reading(Protocol):
    """One group in one step. `lower_T` to `last_T`: the places of what a new token sees, itself the last."""

    @property
    def rows(self) -> Rows: ...
    @property
    def lower_T(self) -> Int64Array: ...
    @property
    def last_T(self) -> Int64Array: ...
    @property
    def num_words(self) -> int:
        """Words that somebody sees."""

    def exchange(self, words_BS: UInt64Array, word_T: UInt64Array) -> UInt64Array:
        """Write the new tokens' words into a layer, and give the words `F` that are seen.

        CanaryError for one that is seen and was not written by its owner.
        """

    def sums(self, words_F: UInt64Array) -> UInt64Array:
        """Of each new token, the sum over what it sees."""


def rows_of(query_len_R: Int32Array, kv_len_R: Int32Array, num_tokens: int) -> Rows:
    """CanaryError where the lengths contradict each other."""
    if int(query_len_R.sum()) != num_tokens:
        raise CanaryError(f"query lengths sum to {int(query_len_R.sum())}, but the step has {num_tokens} tokens")
    if query_len_R.size and int(query_len_R.min()) < 1:
        raise CanaryError(f"query lengths {query_len_R.tolist()}: every row needs at least one token")
    if (kv_len_R < query_len_R).any():
        row = int((kv_len_R < query_len_R).argmax())
        raise CanaryError(
            f"row {row}: the device's KV length {kv_len_R[row]} is shorter than its {query_len_R[row]} new tokens"
        )
    num_rows = query_len_R.size
    row_T = np.arange(num_rows)
    if num_rows == num_tokens:
        position_T = kv_len_R.astype(np.int64) - 1
    else:
        row_T = row_T.repeat(query_len_R)
        position_T = np.arange(num_tokens) + (kv_len_R - query_len_R.cumsum())[row_T]
    return Rows(num_rows=num_rows, query_len_R=query_len_R, kv_len_R=kv_len_R, row_T=row_T, position_T=position_T)


def range_sums(words_F: UInt64Array, factor_F: UInt64Array, lower_T: Int64Array, last_T: Int64Array) -> UInt64Array:
    """Of each new token, the sum of words times factors from its lower place to its last."""
    running = np.zeros(words_F.size + 1, dtype=np.uint64)
    np.cumsum(words_F * factor_F, out=running[1:])
    sum_T: UInt64Array = running[last_T + 1] - running[lower_T]
    return sum_T

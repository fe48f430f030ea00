"""Sample paged KV: batches with shuffled block tables, and KV in which what nobody owns is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from isoinfer.backends.interface import AttentionBatch
from isoinfer.backends.ops.kv import CanonicalKV

NUM_SPARE_BLOCKS = 2
"""Blocks of nobody in each sample: padding of the block table points at one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedRow:
    """A request of the batch: `num_queries` new tokens of `length` in all."""

    num_queries: int
    length: int
    window: int | None = None

    @property
    def first_visible(self) -> int:
        """The first position that any query of the row sees."""
        return 0 if self.window is None else max(0, self.length - self.num_queries - self.window + 1)


def make_batch(rows: Sequence[PagedRow], block_size: int, gen: torch.Generator) -> AttentionBatch:
    """A batch whose blocks are in random order. Lengths are known to host and device."""
    counts = [-(-row.length // block_size) for row in rows]
    order = torch.randperm(sum(counts) + NUM_SPARE_BLOCKS, generator=gen).to(torch.int32)
    table_RB = order[-1].repeat(len(rows), max(counts) + 1)
    start = 0
    for r, count in enumerate(counts):
        table_RB[r, :count] = order[start : start + count]
        start += count
    length_R = np.array([row.length for row in rows], dtype=np.int32)
    return AttentionBatch(
        query_len_R=np.array([row.num_queries for row in rows], dtype=np.int32),
        kv_len_upper_R=length_R,
        kv_len_device_R=torch.from_numpy(length_R.copy()),
        block_table_RB=table_RB,
        block_size=block_size,
        maybe_kv_len_host_R=length_R,
    )


def make_kv(
    rows: Sequence[PagedRow], batch: AttentionBatch, heads: tuple[int, int], dtype: torch.dtype, gen: torch.Generator
) -> CanonicalKV:
    """Random KV for `rows`, `heads` is (K, D). NaN in what is not theirs or not theirs any more.

    That is: past a row's length, whole blocks that left its window (they are released), and spare blocks.
    """
    block_size = batch.block_size
    num_blocks = sum(-(-row.length // block_size) for row in rows) + NUM_SPARE_BLOCKS
    kv = torch.full((2, num_blocks, block_size, *heads), torch.nan, dtype=dtype)
    for r, row in enumerate(rows):
        first = row.first_visible // block_size * block_size
        position = torch.arange(first, row.length)
        block = batch.block_table_RB[r].long()[position // block_size]
        new = torch.randn(2, len(position), *heads, generator=gen).to(dtype)
        kv[:, block, position % block_size] = new
    return CanonicalKV(kv[0], kv[1])

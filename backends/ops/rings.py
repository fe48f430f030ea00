"""Sample rings: rows of a step over rings in random order, and rings in which what no query sees is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from isoinfer.backends.interface import RingBatch
from isoinfer.backends.ops.kv import CanonicalKV

Row = tuple[int, int, int]
"""Position of its first new token, new tokens, floor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingCase:
    """One sample's shape. `heads` are (N, K, D); `margin`: places of a ring besides its window."""

    label: str
    heads: tuple[int, int, int]
    window: int
    margin: int
    rows: tuple[Row, ...]
    sinks: bool = False

    @property
    def ring(self) -> int:
        """Positions that a ring holds."""
        return self.window + self.margin


def ring_cases(queries_at_once: int) -> tuple[RingCase, ...]:
    """Chunks of one token, around the margin, of a window and of three; before and after the ring is full."""
    window, margin = 12, 3
    counts = (1, margin, margin + 1, margin + 2, window, 3 * window)
    full = tuple((start, count, 0) for start, count in zip((40, 15, 16, 29, 33, 100), counts, strict=True))
    filling = ((1, 1, 0), (5, window, 0), (window - 1, 2, 0), (window, margin + 2, 0), (0, 3 * window, 0))
    floors = ((32, 1, 32), (50, 3 * window, 50), (64, 5, 60), (70, 1, 59), (80, 2, 30))
    long = ((3, 2 * queries_at_once + 9, 1), (200, 1, 0))
    case = partial(RingCase, window=window, margin=margin)
    return (
        case(label="first-token", heads=(2, 2, 32), rows=((0, 1, 0),)),
        case(label="full", heads=(4, 2, 32), rows=full),
        case(label="filling-gqa", heads=(6, 2, 64), rows=filling),
        case(label="floors", heads=(4, 1, 32), rows=floors),
        RingCase(label="window-one", heads=(2, 1, 40), window=1, margin=1, rows=((0, 3, 0), (9, 1, 0))),
        RingCase(label="long-chunk", heads=(2, 1, 32), window=5, margin=1, rows=long),
        RingCase(label="sinks", heads=(8, 2, 64), window=window, margin=1, rows=(*full[:4], (20, 4, 18)), sinks=True),
    )


def shuffled(num_rings: int, gen: torch.Generator) -> torch.Tensor:
    """A ring for each row, in random order. One more, the last, is scratch."""
    return torch.randperm(num_rings, generator=gen).to(torch.int32)


def make_ring_batch(rows: Sequence[Row], ring_R: torch.Tensor, *, ring: int, scratch: int) -> RingBatch:
    """Rows over the rings `ring_R`, of `ring` positions each."""
    start_R, query_len_R, floor_R = (np.array(column, dtype=np.int32) for column in zip(*rows, strict=True))
    row_T = np.arange(len(rows)).repeat(query_len_R)
    index_T = np.arange(row_T.size) - (query_len_R.cumsum() - query_len_R)[row_T]
    is_last_T = torch.from_numpy(index_T >= query_len_R[row_T] - ring)
    return RingBatch(
        query_len_R=query_len_R,
        kv_len_R=torch.from_numpy(start_R + query_len_R),
        ring_R=ring_R,
        floor_R=torch.from_numpy(floor_R),
        positions_T=torch.from_numpy((start_R[row_T] + index_T).astype(np.int32)),
        ring_T=torch.where(is_last_T, ring_R[torch.from_numpy(row_T)], scratch),
    )


def make_rings(case: RingCase, plan: RingBatch, dtype: torch.dtype, gen: torch.Generator) -> CanonicalKV:
    """Random K and V at the positions that a row's queries see before its first; NaN in all else."""
    _, K, D = case.heads
    kv = torch.full((2, len(case.rows) + 1, case.ring, K, D), torch.nan, dtype=dtype)
    for (start, _, floor), ring in zip(case.rows, plan.ring_R.tolist(), strict=True):
        position = torch.arange(max(floor, start - case.window + 1, 0), start)
        kv[:, ring, position % case.ring] = torch.randn(2, len(position), K, D, generator=gen).to(dtype)
    return CanonicalKV(kv[0], kv[1])


def fused_qkv(case: RingCase, dtype: torch.dtype, gen: torch.Generator) -> tuple[torch.Tensor, ...]:
    """q, k and v as views of one projection. Scores with a spread above 1 make a wrong mask visible."""
    N, K, D = case.heads
    qkv = torch.randn(sum(count for _, count, _ in case.rows), N + 2 * K, D, generator=gen)
    qkv[:, :N] *= 2
    return torch.split(qkv.to(dtype), [N, K, K], dim=1)

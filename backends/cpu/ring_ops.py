"""Attention over rings on the CPU: what a step sees of them is put into blocks, which paged attention reads.

A key lies in its block where it would lie if all its sequence were in blocks, so a query's bits are those of the
paged form, and depend on no chunking. Suffixes: R rows, T new tokens, O old keys that the rows see, B blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from isoinfer.backends.cpu.kv import BLOCK_SIZE, CpuAttentionPlan, blocks
from isoinfer.backends.interface import RingBatch
from isoinfer.backends.ops import AttentionSpec, CanonicalKV, KVWriteSpec, WindowAttentionSpec, torch_dtype

Function = Callable[..., Any]
IntArray = npt.NDArray[np.integer]


def make_window_attention(
    spec: WindowAttentionSpec,
    make_kv_write: Callable[[KVWriteSpec], Function],
    make_paged_attention: Callable[[AttentionSpec], Function],
) -> Function:
    """window_attention(q_TND, k_TKD, v_TKD, kv, plan, sinks_N | None, out_TND), by the given ops over blocks."""
    shape = {"num_kv_heads": spec.num_kv_heads, "head_dim": spec.head_dim, "block_size": BLOCK_SIZE}
    write = make_kv_write(KVWriteSpec(**shape, dtype=spec.dtype))
    attend = make_paged_attention(
        AttentionSpec(
            **shape,
            num_heads=spec.num_heads,
            scale=spec.scale,
            window=spec.window,
            softcap=None,
            has_sinks=spec.has_sinks,
            dtype=spec.dtype,
        )
    )
    dtype = torch_dtype(spec.dtype)

    def window_attention(
        q_TND: torch.Tensor,
        k_TKD: torch.Tensor,
        v_TKD: torch.Tensor,
        kv: CanonicalKV,
        plan: RingBatch,
        sinks_N: torch.Tensor | None,
        out_TND: torch.Tensor,
    ) -> None:
        step = _blocks_of(plan, spec.window, kv.block_size)
        seen = blocks(spec.num_kv_heads, spec.head_dim, dtype, step.num_blocks)
        for part in seen.parts:
            part.zero_()  # what is beside the keys in their blocks is masked, but must be finite
        write(kv.k_BSKD[step.ring_O, step.place_O], kv.v_BSKD[step.ring_O, step.place_O], seen, step.slots_O)
        write(k_TKD, v_TKD, seen, step.slots_T)
        attend(q_TND, seen, step.plan, sinks_N, out_TND)

    return window_attention


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocks:
    """Where in fresh blocks a step's keys go, old ones from `place_O` of `ring_O`, and the plan to read them."""

    num_blocks: int
    ring_O: torch.Tensor
    place_O: torch.Tensor
    slots_O: torch.Tensor
    slots_T: torch.Tensor
    plan: CpuAttentionPlan


def _blocks_of(plan: RingBatch, window: int, ring: int) -> _Blocks:
    """Blocks in row order, from the one that holds the first key that the row sees."""
    query_len_R, kv_len_R, floor_R = plan.query_len_R, plan.kv_len_R.numpy(), plan.floor_R.numpy()
    start_R = kv_len_R - query_len_R
    oldest_R = np.maximum(start_R - (window - 1), np.maximum(floor_R, 0))
    block_R = oldest_R // BLOCK_SIZE
    count_R = -(-kv_len_R // BLOCK_SIZE) - block_R
    base_R = np.cumsum(count_R) - count_R - block_R
    row_O, old_O = _ranges(oldest_R, start_R - oldest_R)
    row_T, new_T = _ranges(start_R, query_len_R)
    row_F, index_F = _ranges(block_R, count_R)
    table_RB = np.zeros((start_R.size, int((block_R + count_R).max())), dtype=np.int32)
    table_RB[row_F, index_F] = base_R[row_F] + index_F
    q_len_R = torch.from_numpy(query_len_R)
    return _Blocks(
        num_blocks=int(count_R.sum()),
        ring_O=torch.from_numpy(plan.ring_R.numpy()[row_O]).long(),
        place_O=torch.from_numpy(old_O % ring).long(),
        slots_O=_int32(base_R[row_O] * BLOCK_SIZE + old_O),
        slots_T=_int32(base_R[row_T] * BLOCK_SIZE + new_T),
        plan=CpuAttentionPlan(
            table_RB=torch.from_numpy(table_RB),
            q_start_R=torch.cumsum(q_len_R, 0, dtype=torch.int32) - q_len_R,
            q_len_R=q_len_R,
            kv_len_R=plan.kv_len_R,
            maybe_floor_R=plan.floor_R,
        ),
    )


def _ranges(start_R: IntArray, count_R: IntArray) -> tuple[IntArray, IntArray]:
    """The row and the value of every number of the ranges, one range after another."""
    row = np.arange(start_R.size).repeat(count_R)
    first_R = np.cumsum(count_R) - count_R
    return row, np.arange(row.size) + (start_R - first_R)[row]


def _int32(values: IntArray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int32))

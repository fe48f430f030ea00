"""Attention over rings on the CPU: what a step sees of them is put into blocks, which paged attention reads.

A key lies in its block where it would lie if all its sequence were in blocks, so a query's bits are those of the
paged form, and depend on no chunking. Places of a block that hold no key that is seen stay as they are: nobody reads
them. Suffixes: R rows, T new tokens, O old keys that the rows see, B blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from isoinfer.backends.cpu.kv import BLOCK_SIZE, CpuAttentionPlan, CpuLayerKV, blocks
from isoinfer.backends.interface import RingBatch
from isoinfer.backends.ops import AttentionSpec, CanonicalKV, KVWriteSpec, WindowAttentionSpec, torch_dtype

Function = Callable[..., Any]
IntArray = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True, kw_only=True)
class OldKeys:
    """Of each row, the positions of its ring that go into blocks: `count_R` from `first_R` on, position p to slot
    `base_R` + p. int32."""

    ring_R: torch.Tensor
    first_R: torch.Tensor
    count_R: torch.Tensor
    base_R: torch.Tensor


def write_spec(spec: WindowAttentionSpec) -> KVWriteSpec:
    """Writing keys into the blocks."""
    return KVWriteSpec(num_kv_heads=spec.num_kv_heads, head_dim=spec.head_dim, block_size=BLOCK_SIZE, dtype=spec.dtype)


def attention_spec(spec: WindowAttentionSpec) -> AttentionSpec:
    """Reading the blocks."""
    return AttentionSpec(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        scale=spec.scale,
        block_size=BLOCK_SIZE,
        window=spec.window,
        softcap=None,
        has_sinks=spec.has_sinks,
        dtype=spec.dtype,
    )


def make_window_attention(spec: WindowAttentionSpec, gather: Function, write: Function, attend: Function) -> Function:
    """window_attention(q_TND, k_TKD, v_TKD, kv, plan, sinks_N | None, out_TND).

    `gather(kv, old, blocks)` fills blocks from rings; `write` and `attend` are kv_write and paged_attention.
    """
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
        step = _blocks_of(plan, spec.window)
        seen = blocks(spec.num_kv_heads, spec.head_dim, dtype, step.num_blocks)
        gather(kv, step.old, seen)
        write(k_TKD, v_TKD, seen, step.slots_T)
        attend(q_TND, seen, step.plan, sinks_N, out_TND)

    return window_attention


def make_ring_gather(write: Function) -> Function:
    """ring_gather(kv, old, blocks) in torch, with kv_write."""

    def ring_gather(kv: CanonicalKV, old: OldKeys, blocks: CpuLayerKV) -> None:
        row_O, position_O = _ranges(old.first_R.numpy(), old.count_R.numpy())
        where = (old.ring_R[row_O].long(), torch.from_numpy(position_O % kv.block_size).long())
        write(kv.k_BSKD[where], kv.v_BSKD[where], blocks, _int32(old.base_R.numpy()[row_O] + position_O))

    return ring_gather


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocks:
    """Where in fresh blocks a step's keys go, and the plan to read them."""

    num_blocks: int
    old: OldKeys
    slots_T: torch.Tensor
    plan: CpuAttentionPlan


def _blocks_of(plan: RingBatch, window: int) -> _Blocks:
    """Blocks in row order, from the one that holds the first key that the row sees."""
    query_len_R, kv_len_R, floor_R = plan.query_len_R, plan.kv_len_R.numpy(), plan.floor_R.numpy()
    start_R = kv_len_R - query_len_R
    first_R = np.maximum(start_R - (window - 1), np.maximum(floor_R, 0))
    block_R = first_R // BLOCK_SIZE
    count_R = -(-kv_len_R // BLOCK_SIZE) - block_R
    before_R = np.cumsum(count_R) - count_R
    base_R = (before_R - block_R) * BLOCK_SIZE
    row_T, new_T = _ranges(start_R, query_len_R)
    row_F, index_F = _ranges(block_R, count_R)
    table_RB = np.zeros((start_R.size, int((block_R + count_R).max())), dtype=np.int32)
    table_RB[row_F, index_F] = np.arange(row_F.size)
    q_len_R = torch.from_numpy(query_len_R)
    return _Blocks(
        num_blocks=int(count_R.sum()),
        old=OldKeys(
            ring_R=plan.ring_R, first_R=_int32(first_R), count_R=_int32(start_R - first_R), base_R=_int32(base_R)
        ),
        slots_T=_int32(base_R[row_T] + new_T),
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

"""The fixed-address inputs of a step on the device, fed from a ring of host staging buffers.

A staging buffer is not written again until the step that used it has settled: the ring has one more
than steps can be in flight. A step is laid out by its own sizes; a step that decodes in a graph, by the
graph's, so that a graph finds its inputs where they were when it was captured.
Suffixes: T tokens, R rows, B blocks of a row, G sampling rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from isoinfer.engine.plan import StepPlan

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend, Int32Array, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """Device views for one step."""

    token_ids_T: torch.Tensor
    positions_T: torch.Tensor
    slots_T: torch.Tensor
    kv_len_R: torch.Tensor
    logits_rows_G: torch.Tensor
    block_table_RB: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeInputs:
    """Device views of a step with one new token a row, padded. T and R are the same rows."""

    token_ids_T: torch.Tensor
    positions_T: torch.Tensor
    slots_T: torch.Tensor
    kv_len_R: torch.Tensor
    block_table_RB: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """KV blocks that no request owns, where padding rows write: `num_blocks` from `first_block` on."""

    first_block: int
    num_blocks: int
    block_size: int

    @property
    def num_slots(self) -> int:
        """Padding rows that a step can have: each writes to a slot of its own."""
        return self.num_blocks * self.block_size


class InputArena:
    """Device buffers of the largest step, and `depth + 1` host buffers of the same layout."""

    def __init__(self, backend: Backend, *, max_tokens: int, max_rows: int, max_blocks: int, depth: int) -> None:
        self._backend = backend
        self._shapes = (max_tokens, max_rows, max_blocks)
        size = 3 * max_tokens + 2 * max_rows + max_rows * max_blocks
        self._device = backend.empty((size,), torch.int32)
        self._ring = [backend.host_buffer((size,), torch.int32) for _ in range(depth + 1)]
        self._ring_np = [buffer.numpy() for buffer in self._ring]
        self._next = 0
        self._unsettled = 0

    def load(self, plan: StepPlan, block_size: int, stream: Stream) -> StepInputs:
        """Stage the plan's arrays and copy them in, asynchronously on `stream`."""
        token_ids_T, positions_T, slots_T, kv_len_R, logits_rows_G, block_table_RB = self._stage(
            _input_arrays(plan, block_size), stream
        )
        return StepInputs(
            token_ids_T=token_ids_T,
            positions_T=positions_T,
            slots_T=slots_T,
            kv_len_R=kv_len_R,
            logits_rows_G=logits_rows_G,
            block_table_RB=block_table_RB,
        )

    def load_decode(self, plan: StepPlan, size: int, scratch: Scratch, stream: Stream) -> DecodeInputs:
        """The same for a step with one new token a row, padded to `size` rows: always at that size's addresses."""
        _, _, max_blocks = self._shapes
        token_ids_T, positions_T, slots_T, kv_len_R, block_table_RB = self._stage(
            _decode_arrays(plan, size, max_blocks, scratch), stream
        )
        return DecodeInputs(
            token_ids_T=token_ids_T,
            positions_T=positions_T,
            slots_T=slots_T,
            kv_len_R=kv_len_R,
            block_table_RB=block_table_RB,
        )

    def _stage(self, arrays: Sequence[Int32Array], stream: Stream) -> list[torch.Tensor]:
        assert self._unsettled < len(self._ring) - 1 or len(self._ring) == 1, "a staging buffer is still in use"
        index, self._next = self._next, (self._next + 1) % len(self._ring)
        self._unsettled += 1
        views, offset = [], 0
        for array in arrays:
            self._ring_np[index][offset : offset + array.size] = array.ravel()
            views.append(self._device[offset : offset + array.size].view(array.shape))
            offset += array.size
        self._backend.to_device(self._device[:offset], self._ring[index][:offset], stream)
        return views

    def settled(self) -> None:
        """The oldest unsettled step is done: its staging buffer may be written again."""
        assert self._unsettled > 0
        self._unsettled -= 1

    def abandon(self) -> None:
        """No step is in flight any more, whether it settled or not."""
        self._unsettled = 0


def _input_arrays(plan: StepPlan, block_size: int) -> tuple[Int32Array, ...]:
    """Token ids, positions, KV slots, KV lengths, rows of the hidden state to sample, block tables."""
    row_T = np.repeat(np.arange(plan.num_rows, dtype=np.int32), plan.query_len_R)
    end_R = np.cumsum(plan.query_len_R, dtype=np.int32)
    offset_T = np.arange(plan.num_tokens, dtype=np.int32) - (end_R - plan.query_len_R)[row_T]
    positions_T = plan.start_R[row_T] + offset_T
    slots_T = plan.block_table_RB[row_T, positions_T // block_size] * block_size + positions_T % block_size
    return (
        plan.token_ids_T,
        positions_T,
        slots_T,
        plan.start_R + plan.query_len_R,
        (end_R - 1)[plan.samples_R],
        plan.block_table_RB,
    )


def _decode_arrays(plan: StepPlan, size: int, max_blocks: int, scratch: Scratch) -> tuple[Int32Array, ...]:
    """Token ids, positions, KV slots, KV lengths, block tables of `size` rows.

    A padding row is a first token: it writes to a scratch slot of its own and attends to the first of
    these, which a padding row has written, so nothing undefined is read.
    """
    rows, padding = plan.num_rows, size - plan.num_rows
    assert plan.num_tokens == rows, (plan.num_tokens, rows)
    assert 0 <= padding <= scratch.num_slots, (rows, size)
    columns_4T = np.zeros((4, size), dtype=np.int32)
    token_ids_T, positions_T, slots_T, kv_len_R = columns_4T
    block_R = plan.block_table_RB[np.arange(rows), plan.start_R // scratch.block_size]
    token_ids_T[:rows], positions_T[:rows] = plan.token_ids_T, plan.start_R
    slots_T[:rows] = block_R * scratch.block_size + plan.start_R % scratch.block_size
    slots_T[rows:] = scratch.first_block * scratch.block_size + np.arange(padding)
    kv_len_R[:] = positions_T + 1
    block_table_RB = np.zeros((size, max_blocks), dtype=np.int32)
    block_table_RB[:rows, : plan.block_table_RB.shape[1]] = plan.block_table_RB
    block_table_RB[rows:, 0] = scratch.first_block
    return token_ids_T, positions_T, slots_T, kv_len_R, block_table_RB

"""The fixed-address inputs of a step on the device, fed from a ring of host staging buffers.

A staging buffer is not written again until the step that used it has settled: the ring has one more
than steps can be in flight. A step is laid out by its own sizes; a step that decodes in a graph, by the
graph's, so that a graph finds its inputs where they were when it was captured.
Suffixes: T tokens, R rows, X = R + 1, B blocks of a row, P places whose logits are sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from isoinfer.backends.interface import RingBatch
from isoinfer.engine.plan import FRESH, StepPlan

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend, Int32Array, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """Device views for one step, int32. `slots`, `block_tables`: one for each KV group with blocks. `rings`: one for
    each with rings.

    `map_R`: the sampling row of the previous step that a row goes on from, or -1. A padded step of a graph
    has one token a row, and its padding rows come last.
    """

    token_ids_T: torch.Tensor
    positions_T: torch.Tensor
    kv_len_R: torch.Tensor
    query_start_X: torch.Tensor
    map_R: torch.Tensor
    places_P: torch.Tensor
    slots: tuple[torch.Tensor, ...]
    block_tables: tuple[torch.Tensor, ...]
    rings: tuple[RingBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """KV blocks that no request owns, where padding rows write: `num_blocks` of each group, from `first_blocks` on."""

    first_blocks: tuple[int, ...]
    num_blocks: int
    block_size: int

    @property
    def num_slots(self) -> int:
        """Padding rows that a step can have: each writes to a slot of its own."""
        return self.num_blocks * self.block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaSizes:
    """The largest step: tokens, rows, blocks of a row, KV groups with blocks, and steps in flight.

    `rings`: positions of a ring, for each KV group with rings. `scratch_ring`: the ring that no slot owns.
    """

    max_tokens: int
    max_rows: int
    max_blocks: int
    num_groups: int = 1
    depth: int = 1
    rings: tuple[int, ...] = ()
    scratch_ring: int = 0

    @property
    def num_ints(self) -> int:
        """Numbers of the largest step."""
        per_row = 4 + self.num_groups * self.max_blocks + (2 if self.rings else 0)
        return (3 + self.num_groups + len(self.rings)) * self.max_tokens + per_row * self.max_rows + 1


class InputArena:
    """Device buffers of the largest step, and `depth + 1` host buffers of the same layout."""

    def __init__(self, backend: Backend, sizes: ArenaSizes, block_size: int) -> None:
        self._backend, self._sizes, self._block_size = backend, sizes, block_size
        self._device = backend.empty((sizes.num_ints,), torch.int32)
        self._ring = [backend.host_buffer((sizes.num_ints,), torch.int32) for _ in range(sizes.depth + 1)]
        self._ring_np = [buffer.numpy() for buffer in self._ring]
        self._next = 0
        self._unsettled = 0

    def load(self, plan: StepPlan, map_R: Int32Array, stream: Stream) -> StepInputs:
        """Stage the plan's arrays and copy them in, asynchronously on `stream`."""
        rest = (map_R, *plan.block_tables, *_ring_arrays(plan, self._sizes))
        return self._stage((*_input_arrays(plan, self._block_size), *rest), plan.query_len_R, stream)

    def load_decode(self, plan: StepPlan, map_R: Int32Array, size: int, scratch: Scratch, stream: Stream) -> StepInputs:
        """The same for a step with one new token a row, padded to `size` rows: always at that size's addresses."""
        tables = [
            _padded_table(table_RB, size, self._sizes.max_blocks, first)
            for table_RB, first in zip(plan.block_tables, scratch.first_blocks, strict=True)
        ]
        padded_R = np.full(size, FRESH, dtype=np.int32)
        padded_R[: plan.num_rows] = map_R
        rest = (padded_R, *tables, *_padded_rings(plan, size, self._sizes))
        ones_R = np.ones(size, dtype=np.int32)
        inputs = self._stage((*_decode_arrays(plan, size, scratch), *rest), ones_R, stream)
        return replace(inputs, places_P=inputs.places_P[: plan.num_rows])

    def _stage(self, arrays: Sequence[Int32Array], query_len_R: Int32Array, stream: Stream) -> StepInputs:
        assert self._unsettled < len(self._ring) - 1, "a staging buffer is still in use"
        index, self._next = self._next, (self._next + 1) % len(self._ring)
        self._unsettled += 1
        sizes = [array.size for array in arrays]
        total = sum(sizes)
        np.concatenate([array.ravel() for array in arrays], out=self._ring_np[index][:total])
        staged = self._device[:total]
        self._backend.to_device(staged, self._ring[index][:total], stream)
        views = [
            part if array.ndim == 1 else part.view(array.shape)
            for part, array in zip(staged.split_with_sizes(sizes), arrays, strict=True)
        ]
        groups = self._sizes.num_groups
        of_rings = views[6 + 2 * groups :]
        token_ids_T, positions_T, kv_len_R, query_start_X, places_P = views[:5]
        return StepInputs(
            token_ids_T=token_ids_T,
            positions_T=positions_T,
            kv_len_R=kv_len_R,
            query_start_X=query_start_X,
            places_P=places_P,
            slots=tuple(views[5 : 5 + groups]),
            map_R=views[5 + groups],
            block_tables=tuple(views[6 + groups : 6 + 2 * groups]),
            rings=tuple(
                RingBatch(
                    query_len_R=query_len_R,
                    kv_len_R=kv_len_R,
                    ring_R=of_rings[0],
                    floor_R=of_rings[1],
                    positions_T=positions_T,
                    ring_T=ring_T,
                )
                for ring_T in of_rings[2:]
            ),
        )

    def settled(self) -> None:
        """The oldest unsettled step is done: its staging buffer may be written again."""
        assert self._unsettled > 0
        self._unsettled -= 1

    def abandon(self) -> None:
        """No step is in flight any more, whether it settled or not."""
        self._unsettled = 0


def _input_arrays(plan: StepPlan, block_size: int) -> tuple[Int32Array, ...]:
    """Token ids, positions, KV lengths, query starts, places to sample, and the KV slots of each group."""
    row_T = np.repeat(np.arange(plan.num_rows, dtype=np.int32), plan.query_len_R)
    query_start_X = np.zeros(plan.num_rows + 1, dtype=np.int32)
    np.cumsum(plan.query_len_R, out=query_start_X[1:])
    positions_T = np.arange(plan.num_tokens, dtype=np.int32) + (plan.start_R - query_start_X[:-1])[row_T]
    block_T, offset_T = np.divmod(positions_T, block_size)
    slots = [table_RB[row_T, block_T] * block_size + offset_T for table_RB in plan.block_tables]
    if (plan.start_R < plan.write_floor_R).any():  # what is written to block 0 nobody reads
        is_final_T = positions_T < plan.write_floor_R[row_T]
        slots = [np.where(is_final_T, offset_T, slots_T).astype(np.int32) for slots_T in slots]
    kv_len_R = plan.start_R + plan.query_len_R
    return plan.token_ids_T, positions_T, kv_len_R, query_start_X, _places(plan, query_start_X[1:]), *slots


def _ring_arrays(plan: StepPlan, sizes: ArenaSizes) -> tuple[Int32Array, ...]:
    """Each row's ring and floor, and for each group the ring of each token that no later one of its row replaces."""
    if not sizes.rings:
        return ()
    row_T = np.repeat(np.arange(plan.num_rows), plan.query_len_R)
    later_T = np.cumsum(plan.query_len_R)[row_T] - 1 - np.arange(plan.num_tokens)
    ring_T = plan.slot_R[row_T]
    kept = (np.where(later_T < size, ring_T, sizes.scratch_ring).astype(np.int32) for size in sizes.rings)
    return plan.slot_R, plan.floor_R, *kept


def _padded_rings(plan: StepPlan, size: int, sizes: ArenaSizes) -> tuple[Int32Array, ...]:
    """The same for `size` rows of one token. Padding rows are first tokens: they see nothing of the scratch ring."""
    if not sizes.rings:
        return ()
    ring_R, floor_R = np.full(size, sizes.scratch_ring, dtype=np.int32), np.zeros(size, dtype=np.int32)
    ring_R[: plan.num_rows], floor_R[: plan.num_rows] = plan.slot_R, plan.floor_R
    return ring_R, floor_R, *(ring_R for _ in sizes.rings)


def _places(plan: StepPlan, end_R: Int32Array) -> Int32Array:
    """Where the logits that are sampled come from: the last token of each sampling row, and its drafts."""
    last_G, drafts_G = (end_R - 1)[plan.samples_R], plan.num_drafts_R[plan.samples_R]
    if not drafts_G.any():
        return last_G
    count_G = drafts_G + 1
    ahead_P = np.arange(int(count_G.sum()), dtype=np.int32) - np.repeat(np.cumsum(count_G) - count_G, count_G)
    places_P: Int32Array = (np.repeat(last_G - drafts_G, count_G) + ahead_P).astype(np.int32)
    return places_P


def _decode_arrays(plan: StepPlan, size: int, scratch: Scratch) -> tuple[Int32Array, ...]:
    """The same arrays for `size` rows of one token, each of them a place: a graph gives the logits of all rows.

    A padding row is a first token: it writes to a scratch slot of its own and attends to the first of
    these, which a padding row has written, so nothing undefined is read.
    """
    rows, padding = plan.num_rows, size - plan.num_rows
    assert plan.num_tokens == rows, (plan.num_tokens, rows)
    assert 0 <= padding <= scratch.num_slots, (rows, size)
    token_ids_T, positions_T = np.zeros((2, size), dtype=np.int32)
    token_ids_T[:rows], positions_T[:rows] = plan.token_ids_T, plan.start_R
    block_R, offset_R = np.divmod(plan.start_R, scratch.block_size)
    slots = []
    for table_RB, first in zip(plan.block_tables, scratch.first_blocks, strict=True):
        slots_T = np.empty(size, dtype=np.int32)
        slots_T[:rows] = table_RB[np.arange(rows), block_R] * scratch.block_size + offset_R
        slots_T[rows:] = first * scratch.block_size + np.arange(padding)
        slots.append(slots_T)
    query_start_X = np.arange(size + 1, dtype=np.int32)
    return token_ids_T, positions_T, positions_T + 1, query_start_X, query_start_X[:-1], *slots


def _padded_table(table_RB: Int32Array, size: int, max_blocks: int, scratch_block: int) -> Int32Array:
    rows, width = table_RB.shape
    padded_RB = np.zeros((size, max_blocks), dtype=np.int32)
    padded_RB[:rows, :width] = table_RB
    padded_RB[rows:, 0] = scratch_block
    return padded_RB

"""What a round takes over from the round before, where device and host are one: only mapped rows are touched.

Suffixes: those of `ops/remap.py`, and P rows that are mapped, J their tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from isoinfer.backends.interface import Int32Array
from isoinfer.backends.ops import RemapSlotsSpec, RemapSpec

Indices = npt.NDArray[np.intp]


def make_remap(spec: RemapSpec) -> Callable[..., None]:
    """remap(token_ids_T, positions_T, kv_len_R, query_start_X, map_R, last_token_G, rejected_G, draft_GK)."""

    def remap_last(
        token_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        kv_len_R: torch.Tensor,
        query_start_X: torch.Tensor,
        map_R: torch.Tensor,
        last_token_G: torch.Tensor,
        rejected_G: torch.Tensor,
        draft_GK: torch.Tensor,
    ) -> None:
        rows_P, source_P = _mapped(map_R)
        token_ids_T.numpy()[query_start_X.numpy()[rows_P]] = last_token_G.numpy()[source_P]

    def remap_with_drafts(
        token_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        kv_len_R: torch.Tensor,
        query_start_X: torch.Tensor,
        map_R: torch.Tensor,
        last_token_G: torch.Tensor,
        rejected_G: torch.Tensor,
        draft_GK: torch.Tensor,
    ) -> None:
        rows_P, source_P = _mapped(map_R)
        at_J, mapped_J, index_J = _tokens(query_start_X.numpy(), rows_P)
        token_PX = np.concatenate((last_token_G.numpy()[source_P, None], draft_GK.numpy()[source_P]), axis=1)
        rejected_P = rejected_G.numpy()[source_P]
        token_ids_T.numpy()[at_J] = token_PX[mapped_J, index_J]
        positions_T.numpy()[at_J] -= rejected_P[mapped_J]
        kv_len_R.numpy()[rows_P] -= rejected_P

    return remap_with_drafts if spec.num_drafts else remap_last


def make_remap_slots(spec: RemapSlotsSpec) -> Callable[..., None]:
    """remap_slots(slots_T, positions_T, query_start_X, map_R, block_table_RB)."""

    def remap_slots(
        slots_T: torch.Tensor,
        positions_T: torch.Tensor,
        query_start_X: torch.Tensor,
        map_R: torch.Tensor,
        block_table_RB: torch.Tensor,
    ) -> None:
        rows_P, _ = _mapped(map_R)
        at_J, mapped_J, _ = _tokens(query_start_X.numpy(), rows_P)
        block_J, offset_J = np.divmod(positions_T.numpy()[at_J], spec.block_size)
        slots_T.numpy()[at_J] = block_table_RB.numpy()[rows_P[mapped_J], block_J] * spec.block_size + offset_J

    return remap_slots


def _mapped(map_R: torch.Tensor) -> tuple[Indices, Int32Array]:
    """Rows that are mapped, and where to."""
    source_R = map_R.numpy()
    rows_P = np.flatnonzero(source_R >= 0)
    return rows_P, source_R[rows_P]


def _tokens(start_X: Int32Array, rows_P: Indices) -> tuple[Indices, Indices, Indices]:
    """The tokens of some rows: where each is in the batch, which of the rows it is of, and its index there."""
    first_P = start_X[rows_P]
    count_P = start_X[rows_P + 1] - first_P
    mapped_J = np.repeat(np.arange(len(rows_P)), count_P)
    index_J = np.arange(len(mapped_J)) - (np.cumsum(count_P) - count_P)[mapped_J]
    return first_P[mapped_J] + index_J, mapped_J, index_J

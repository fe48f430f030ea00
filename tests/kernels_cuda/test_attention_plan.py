"""Which rows decode and which tiles the others have, in both forms of the plan."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isoinfer.backends.interface import AttentionBatch
from isoinfer.backends.torch_device.runtime import HostRuntime
from isoinfer.kernels_cuda.attention_plan import AttentionPlanner, CudaAttentionPlan

TILE = 8


@pytest.fixture(scope="module")
def plan() -> Callable[[list[int], bool], CudaAttentionPlan]:
    """plan(new tokens of each row, tiles_only)"""
    runtime = HostRuntime()
    planners = {
        tiles_only: AttentionPlanner(runtime.empty, runtime.host_buffer, tiles_only=tiles_only)
        for tiles_only in (False, True)
    }
    for planner in planners.values():
        planner.register(TILE)

    def make(queries: list[int], tiles_only: bool) -> CudaAttentionPlan:
        query_len_R = np.array(queries, dtype=np.int32)
        batch = AttentionBatch(
            query_len_R=query_len_R,
            kv_len_upper_R=query_len_R + 3,
            kv_len_device_R=torch.from_numpy(query_len_R + 3),
            block_table_RB=torch.zeros(len(queries), 1, dtype=torch.int32),
            block_size=64,
        )
        return planners[tiles_only].plan(batch, runtime.stream())

    return make


@given(queries=st.lists(st.integers(1, 30), min_size=1, max_size=9), tiles_only=st.booleans())
def test_every_query_is_in_one_tile_or_decodes(
    plan: Callable[[list[int], bool], CudaAttentionPlan], queries: list[int], tiles_only: bool
) -> None:
    made = plan(queries, tiles_only)
    decoding = [] if tiles_only else [row for row, count in enumerate(queries) if count == 1]
    assert made.decode_rows_E.tolist() == decoding
    assert made.q_len_R.tolist() == queries
    assert made.q_start_R.tolist() == (np.cumsum(queries) - queries).tolist()
    tiled = [
        (row, first) for row, count in enumerate(queries) if row not in decoding for first in range(0, count, TILE)
    ]
    tiles = made.tiles[TILE] if tiled else None
    assert (list(zip(tiles.row_P.tolist(), tiles.query_P.tolist(), strict=True)) if tiles else []) == tiled


@pytest.mark.parametrize("tiles_only", [False, True])
def test_a_batch_that_only_decodes_keeps_its_addresses(
    plan: Callable[[list[int], bool], CudaAttentionPlan], tiles_only: bool
) -> None:
    """So that a captured graph stays valid."""
    plan([1] * 200, tiles_only)
    before, after = plan([1] * 3, tiles_only), plan([1] * 3, tiles_only)
    assert before.q_len_R.data_ptr() == after.q_len_R.data_ptr()
    assert before.decode_rows_E.data_ptr() == after.decode_rows_E.data_ptr()
    assert set(before.tiles) == set(after.tiles) == ({TILE} if tiles_only else set())
    for size in before.tiles:
        assert before.tiles[size].row_P.data_ptr() == after.tiles[size].row_P.data_ptr()
        assert before.tiles[size].query_P.data_ptr() == after.tiles[size].query_P.data_ptr()

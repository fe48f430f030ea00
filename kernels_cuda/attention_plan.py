"""An attention batch worked out for the CUDA kernels: which rows decode, and which tiles of queries the others have.

Suffixes: R rows, E decode rows, P tiles of queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from isoinfer.backends.interface import AttentionBatch, Int32Array, Stream
from isoinfer.backends.torch_device.runtime import copy_async


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryTiles:
    """Tiles of a fixed number of queries: the row of each, and its first query within the row."""

    row_P: torch.Tensor
    query_P: torch.Tensor

    @property
    def num_tiles(self) -> int:
        """Tiles of the step."""
        return self.row_P.numel()


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaAttentionPlan:
    """int32 device tensors. `max_kv_len` bounds the KV lengths of the decode rows; `tiles` by queries a tile.

    Where all rows go by tiles there are no decode rows.
    """

    q_start_R: torch.Tensor
    q_len_R: torch.Tensor
    kv_len_R: torch.Tensor
    table_RB: torch.Tensor
    decode_rows_E: torch.Tensor
    max_kv_len: int
    tiles: Mapping[int, QueryTiles]

    @property
    def host_params(self) -> dict[str, Any]:
        """Everything is read on the device."""
        return {}


class AttentionPlanner:
    """Plans batches. Kernels say once, when they are bound, how many queries their tiles have.

    `empty(shape, dtype)` and `host_buffer(shape, dtype)` are the runtime's. `tiles_only`: rows with one query
    have a tile like all others, for the sake of one order of sums.
    """

    def __init__(
        self, empty: Callable[..., torch.Tensor], host_buffer: Callable[..., torch.Tensor], *, tiles_only: bool
    ) -> None:
        self.tiles_only = tiles_only
        self._empty, self._host_buffer = empty, host_buffer
        self._tile_sizes: set[int] = set()
        self._constants = empty((3, 0), torch.int32)

    def register(self, queries: int) -> None:
        """Plans shall list the tiles of `queries` queries."""
        self._tile_sizes.add(queries)

    def plan(self, batch: AttentionBatch, stream: Stream) -> CudaAttentionPlan:
        """One copy to the device at most, and none for a batch that only decodes: a captured one stays valid."""
        if bool((batch.query_len_R == 1).all()):
            rows_R, ones_R, zeros_R = self._decode_rows(len(batch.query_len_R), stream)
            if self.tiles_only:
                tile = QueryTiles(row_P=rows_R, query_P=zeros_R)
                return self._plan(batch, rows_R, ones_R, rows_R[:0], dict.fromkeys(self._tile_sizes, tile))
            return self._plan(batch, rows_R, ones_R, rows_R, {})
        parts = _host_parts(batch.query_len_R, sorted(self._tile_sizes), self.tiles_only)
        q_start_R, q_len_R, decode_rows_E, *lists = self._to_device(parts, stream)
        tiles = {
            size: QueryTiles(row_P=row_P, query_P=query_P)
            for size, row_P, query_P in zip(sorted(self._tile_sizes), lists[::2], lists[1::2], strict=True)
        }
        return self._plan(batch, q_start_R, q_len_R, decode_rows_E, tiles)

    def _plan(
        self,
        batch: AttentionBatch,
        q_start_R: torch.Tensor,
        q_len_R: torch.Tensor,
        decode_rows_E: torch.Tensor,
        tiles: Mapping[int, QueryTiles],
    ) -> CudaAttentionPlan:
        upper_E = batch.kv_len_upper_R[batch.query_len_R == 1]
        return CudaAttentionPlan(
            q_start_R=q_start_R,
            q_len_R=q_len_R,
            kv_len_R=batch.kv_len_device_R,
            table_RB=batch.block_table_RB,
            decode_rows_E=decode_rows_E,
            max_kv_len=int(upper_E.max(initial=0)),
            tiles=tiles,
        )

    def _decode_rows(self, count: int, stream: Stream) -> list[torch.Tensor]:
        """0, 1, 2, ..., as many ones and as many zeros, on the device; made again only when they must grow."""
        if self._constants.shape[1] < count:
            size = max(256, 1 << (count - 1).bit_length())
            host = self._host_buffer((3, size), torch.int32)
            host.numpy()[:] = np.arange(size), np.ones(size), np.zeros(size)
            self._constants = self._empty((3, size), torch.int32)
            stream.launch(copy_async, self._constants, host)
        return list(self._constants[:, :count])

    def _to_device(self, parts: Sequence[Int32Array], stream: Stream) -> list[torch.Tensor]:
        sizes = [part.size for part in parts]
        host = self._host_buffer((sum(sizes),), torch.int32)
        host.numpy()[:] = np.concatenate(parts)
        device = self._empty((sum(sizes),), torch.int32)
        stream.launch(copy_async, device, host)
        return list(torch.split(device, sizes))


def _host_parts(query_len_R: Int32Array, tile_sizes: Sequence[int], tiles_only: bool) -> list[Int32Array]:
    """q_start, q_len, decode rows, then row and first query of each tile for every tile size."""
    q_start_R = np.cumsum(query_len_R, dtype=np.int32) - query_len_R
    decodes_R = (query_len_R == 1) & (not tiles_only)
    parts = [q_start_R, query_len_R, np.flatnonzero(decodes_R).astype(np.int32)]
    tiled_R = np.flatnonzero(~decodes_R).astype(np.int32)
    for size in tile_sizes:
        count = -(-query_len_R[tiled_R] // size)
        row_P = np.repeat(tiled_R, count)
        first_P = np.repeat(np.cumsum(count) - count, count)
        parts += [row_P, ((np.arange(row_P.size) - first_P) * size).astype(np.int32)]
    return parts

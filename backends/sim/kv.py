"""Simulated KV: one 64-bit word per slot, group and simulated layer, with a canary for what nobody owns.

Suffixes: L simulated layers, B blocks, S tokens in a block, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from isoinfer.backends.interface import AttentionBatch, Int32Array, KVCache, KVLayout, KVSpec
from isoinfer.backends.sim.fingerprint import POISON, UInt64Array

NOBODYS_BLOCK = 0
"""Padded table entries point at it; it is never handed out, so nothing that is written there is ever read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimGroupKV:
    """The words of one group; of one with rings, a block is a ring."""

    spec: KVSpec
    words_LBS: UInt64Array

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return int(self.words_LBS.shape[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class SimKVCache:
    """All groups' words."""

    groups: tuple[SimGroupKV, ...]

    def layer(self, index: int) -> SimGroupKV:
        """The group that model layer `index` belongs to."""
        return next(group for group in self.groups if index in group.spec.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimAttentionPlan:
    """An AttentionBatch as it is. Host arrays are read when the step runs, so that late changes of them show.

    `maybe_kv_len_host_R` is there only on a device whose attention needs it.
    """

    query_len_R: Int32Array
    kv_len_upper_R: Int32Array
    kv_len_device_R: torch.Tensor
    block_table_RB: torch.Tensor
    maybe_kv_len_host_R: Int32Array | None

    @property
    def host_params(self) -> dict[str, Any]:
        """Exact lengths, where attention needs them: a graph is replayed with those of the step."""
        return {} if self.maybe_kv_len_host_R is None else {"kv_len_host_R": self.maybe_kv_len_host_R}


def own(kv: KVCache) -> SimKVCache:
    """The cache as this backend made it; another backend's is a programmer error."""
    assert isinstance(kv, SimKVCache), type(kv)
    return kv


def layout(specs: Sequence[KVSpec], block_size: int, num_scratch_blocks: int) -> KVLayout:
    """The sizes that the real model's K and V would have."""
    return KVLayout(
        block_size=block_size,
        bytes_per_block=tuple((spec.ring or block_size) * bytes_per_token(spec) for spec in specs),
        num_scratch_blocks=num_scratch_blocks,
    )


def bytes_per_token(spec: KVSpec) -> int:
    """K and V of one token over the layers of a group."""
    size: int = getattr(torch, spec.dtype).itemsize
    return 2 * len(spec.layers) * spec.num_kv_heads * spec.head_dim * size


def allocate(specs: Sequence[KVSpec], num_blocks: Sequence[int], *, num_layers: int, block_size: int) -> SimKVCache:
    """All words 0, which is unwritten. The system commits pages only when they are written."""
    return SimKVCache(
        groups=tuple(
            SimGroupKV(spec=spec, words_LBS=np.zeros((num_layers, blocks, spec.ring or block_size), dtype=np.uint64))
            for spec, blocks in zip(specs, num_blocks, strict=True)
        )
    )


def copy_blocks(cache: SimKVCache, group: int, src_B: Int32Array, dst_B: Int32Array) -> None:
    """Copy blocks within every layer of a group."""
    words_LBS = cache.groups[group].words_LBS
    words_LBS[:, dst_B] = words_LBS[:, src_B]


def poison_blocks(cache: SimKVCache, group: int, ids_B: Int32Array) -> None:
    """Nobody may read these blocks before writing them."""
    cache.groups[group].words_LBS[:, ids_B] = POISON


def export_blocks(group: SimGroupKV, ids_B: Int32Array) -> tuple[torch.Tensor, torch.Tensor]:
    """The words as K `[B, S, L, 1]` in int64, and as V the same once more."""
    k_BSLD = torch.from_numpy(group.words_LBS[:, ids_B].transpose(1, 2, 0)[..., None].copy().view(np.int64))
    return k_BSLD, k_BSLD.clone()


def import_blocks(group: SimGroupKV, ids_B: Int32Array, k_BSLD: torch.Tensor) -> None:
    """Store words as `export_blocks` gives them."""
    group.words_LBS[:, ids_B] = k_BSLD.numpy().view(np.uint64)[..., 0].transpose(2, 0, 1)


def plan(batch: AttentionBatch, *, host_lengths: bool) -> SimAttentionPlan:
    """Keep the batch's arrays; exact host lengths are demanded where the device needs them."""
    return SimAttentionPlan(
        query_len_R=batch.query_len_R,
        kv_len_upper_R=batch.kv_len_upper_R,
        kv_len_device_R=batch.kv_len_device_R,
        block_table_RB=batch.block_table_RB,
        maybe_kv_len_host_R=batch.kv_len_host_R if host_lengths else None,
    )

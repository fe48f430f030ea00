"""KV in the CPU's own shape, and its plan for attention.

K of a block lies with its 16 keys side by side (`[B, K, D/p, 16, p]`, p = 2 for bfloat16, 1 for float32),
so that one register load serves 16 scores; V is `[B, K, 16, D]`. Nobody outside this folder knows.
Rings are as the references have them, `[slots, positions, K, D]`: their places are reused one at a time.
Suffixes: B blocks, K KV heads, D head dim, S tokens in a block, p packed pair, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from isoinfer.backends.interface import AttentionBatch, Int32Array, KVCache, KVLayout, KVSpec
from isoinfer.backends.ops import CanonicalKV

BLOCK_SIZE = 16
TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLayerKV:
    """One layer: `k_BKDSp` and `v_BKSD`."""

    k_BKDSp: torch.Tensor
    v_BKSD: torch.Tensor

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return BLOCK_SIZE

    @property
    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V, blocks first."""
        return self.k_BKDSp, self.v_BKSD

    def keys(self, ids_B: torch.Tensor) -> torch.Tensor:
        """K of the blocks `ids_B` as a fresh `[B, S, K, D]`."""
        return self.k_BKDSp[ids_B].permute(0, 3, 1, 2, 4).flatten(3)

    def values(self, ids_B: torch.Tensor) -> torch.Tensor:
        """V of the blocks `ids_B` as a fresh `[B, S, K, D]`."""
        return self.v_BKSD[ids_B].transpose(1, 2)

    def store(self, ids_B: torch.Tensor, k_BSKD: torch.Tensor, v_BSKD: torch.Tensor) -> None:
        """Write whole blocks given in the canonical shape."""
        pack = self.k_BKDSp.shape[-1]
        self.k_BKDSp[ids_B] = k_BSKD.to(self.k_BKDSp.dtype).reshape(*k_BSKD.shape[:3], -1, pack).permute(0, 2, 3, 1, 4)
        self.v_BKSD[ids_B] = v_BSKD.to(self.v_BKSD.dtype).transpose(1, 2)


LayerKV = CpuLayerKV | CanonicalKV
"""Blocks, or rings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuKVCache:
    """All groups' KV. `groups`: the model layers of each."""

    layers: dict[int, LayerKV]
    groups: tuple[tuple[int, ...], ...]

    def layer(self, index: int) -> LayerKV:
        """The KV of model layer `index`."""
        return self.layers[index]


def own(kv: KVCache) -> CpuKVCache:
    """The cache as this backend made it; another backend's is a programmer error."""
    assert isinstance(kv, CpuKVCache), type(kv)
    return kv


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuAttentionPlan:
    """An AttentionBatch as the kernels take it: int32 tensors, contiguous, and the pointers they pass.

    `maybe_floor_R`: keys below are invisible to the row; None = all are visible.
    """

    table_RB: torch.Tensor
    q_start_R: torch.Tensor
    q_len_R: torch.Tensor
    kv_len_R: torch.Tensor
    maybe_floor_R: torch.Tensor | None = None

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return self.q_len_R.numel()

    @property
    def host_params(self) -> dict[str, Any]:
        """The kernels read everything from tensors."""
        return {}


def layout(specs: Sequence[KVSpec], num_scratch_blocks: int = 0) -> KVLayout:
    """Block size, and bytes of one block, or ring, of each group over its layers."""
    sizes = tuple(
        2 * len(s.layers) * s.num_kv_heads * s.head_dim * (s.ring or BLOCK_SIZE) * TORCH_DTYPES[s.dtype].itemsize
        for s in specs
    )
    return KVLayout(block_size=BLOCK_SIZE, bytes_per_block=sizes, num_scratch_blocks=num_scratch_blocks)


def allocate(specs: Sequence[KVSpec], num_blocks: Sequence[int]) -> CpuKVCache:
    """Room for so many blocks of each group; contents undefined. Pages are committed only when they are written."""
    layers = {
        index: _layer(spec, count) for spec, count in zip(specs, num_blocks, strict=True) for index in spec.layers
    }
    return CpuKVCache(layers=layers, groups=tuple(spec.layers for spec in specs))


def _layer(spec: KVSpec, num_blocks: int) -> LayerKV:
    if spec.ring is not None:
        shape = (num_blocks, spec.ring, spec.num_kv_heads, spec.head_dim)
        return CanonicalKV(*(torch.empty(shape, dtype=TORCH_DTYPES[spec.dtype]) for _ in "kv"))
    return blocks(spec.num_kv_heads, spec.head_dim, TORCH_DTYPES[spec.dtype], num_blocks)


def blocks(num_kv_heads: int, head_dim: int, dtype: torch.dtype, num_blocks: int) -> CpuLayerKV:
    """Blocks of one layer, contents undefined."""
    pack = 4 // dtype.itemsize
    assert head_dim % pack == 0, (head_dim, dtype)
    k_shape = (num_blocks, num_kv_heads, head_dim // pack, BLOCK_SIZE, pack)
    v_shape = (num_blocks, num_kv_heads, BLOCK_SIZE, head_dim)
    return CpuLayerKV(k_BKDSp=torch.empty(k_shape, dtype=dtype), v_BKSD=torch.empty(v_shape, dtype=dtype))


def read_blocks(kv: LayerKV, ids_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of whole blocks, or rings, as fresh `[B, S, K, D]`."""
    if isinstance(kv, CanonicalKV):
        return kv.k_BSKD[ids_B], kv.v_BSKD[ids_B]
    return kv.keys(ids_B), kv.values(ids_B)


def write_blocks(kv: LayerKV, ids_B: torch.Tensor, k_BSKD: torch.Tensor, v_BSKD: torch.Tensor) -> None:
    """Store whole blocks, or rings, given in the canonical shape."""
    if isinstance(kv, CanonicalKV):
        kv.k_BSKD[ids_B], kv.v_BSKD[ids_B] = k_BSKD.to(kv.k_BSKD.dtype), v_BSKD.to(kv.v_BSKD.dtype)
    else:
        kv.store(ids_B, k_BSKD, v_BSKD)


def copy_blocks(cache: CpuKVCache, group: int, src_B: Int32Array, dst_B: Int32Array) -> None:
    """Copy blocks, or rings, within every layer of a group."""
    src, dst = torch.from_numpy(src_B).long(), torch.from_numpy(dst_B).long()
    for layer in map(cache.layer, cache.groups[group]):
        for part in layer.parts:
            part[dst] = part[src]


def plan(batch: AttentionBatch) -> CpuAttentionPlan:
    """Offsets of the rows in q, and everything as int32 tensors."""
    q_len_R = torch.from_numpy(batch.query_len_R)
    q_start_R = torch.cumsum(q_len_R, 0, dtype=torch.int32) - q_len_R
    return CpuAttentionPlan(
        table_RB=batch.block_table_RB.contiguous(),
        q_start_R=q_start_R,
        q_len_R=q_len_R,
        kv_len_R=batch.kv_len_device_R,
    )

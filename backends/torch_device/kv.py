"""Paged KV as plain tensors `[B, S, K, D]` on a torch device; layers are the references' own `CanonicalKV`.

Suffixes: B blocks, S tokens in a block, K KV heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from isoinfer.backends.interface import Int32Array, KVCache, KVLayout, KVSpec
from isoinfer.backends.ops import CanonicalKV, torch_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedKVCache:
    """All groups' KV. `groups`: the model layers of each."""

    layers: dict[int, CanonicalKV]
    groups: tuple[tuple[int, ...], ...]

    def layer(self, index: int) -> CanonicalKV:
        """The KV of model layer `index`."""
        return self.layers[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedKVStore:
    """Allocates and moves KV on `device`, in blocks of `block_size` tokens.

    `num_scratch_blocks`: blocks of each group that padding rows may write to; the engine asks for them with its own.
    """

    device: torch.device
    block_size: int
    num_scratch_blocks: int = 0

    def layout(self, specs: Sequence[KVSpec]) -> KVLayout:
        """Block size, and bytes of one block, or ring, of each group over its layers."""
        sizes = (2 * len(s.layers) * s.num_kv_heads * s.head_dim * torch_dtype(s.dtype).itemsize for s in specs)
        tokens = (s.ring or self.block_size for s in specs)
        return KVLayout(
            block_size=self.block_size,
            bytes_per_block=tuple(num * size for num, size in zip(tokens, sizes, strict=True)),
            num_scratch_blocks=self.num_scratch_blocks,
        )

    def allocate(self, specs: Sequence[KVSpec], num_blocks: Sequence[int]) -> PagedKVCache:
        """Room for so many blocks of each group. Zeroed once: a padded load of a block never reads old memory's NaN."""
        counted = zip(specs, num_blocks, strict=True)
        layers = {index: self._layer(spec, count) for spec, count in counted for index in spec.layers}
        return PagedKVCache(layers=layers, groups=tuple(spec.layers for spec in specs))

    def _layer(self, spec: KVSpec, num_blocks: int) -> CanonicalKV:
        shape = (num_blocks, spec.ring or self.block_size, spec.num_kv_heads, spec.head_dim)
        k_BSKD, v_BSKD = (torch.zeros(shape, dtype=torch_dtype(spec.dtype), device=self.device) for _ in range(2))
        return CanonicalKV(k_BSKD, v_BSKD)

    def copy(self, cache: KVCache, group: int, src_B: Int32Array, dst_B: Int32Array) -> None:
        """Copy blocks within every layer of a group."""
        mine, src, dst = own(cache), self._ids(src_B), self._ids(dst_B)
        for layer in map(mine.layer, mine.groups[group]):
            for part in layer.parts:
                part[dst] = part[src]

    def export(self, cache: KVCache, layer: int, ids_B: Int32Array) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of blocks as host tensors `[B, S, K, D]`."""
        kv, ids = own(cache).layer(layer), self._ids(ids_B)
        return kv.k_BSKD[ids].cpu(), kv.v_BSKD[ids].cpu()

    def store(self, cache: KVCache, layer: int, ids_B: Int32Array, k_BSKD: torch.Tensor, v_BSKD: torch.Tensor) -> None:
        """Write whole blocks given on the host as `[B, S, K, D]`."""
        kv, ids = own(cache).layer(layer), self._ids(ids_B)
        kv.k_BSKD[ids] = k_BSKD.to(kv.k_BSKD)
        kv.v_BSKD[ids] = v_BSKD.to(kv.v_BSKD)

    def _ids(self, ids_B: Int32Array) -> torch.Tensor:
        return torch.from_numpy(ids_B).to(self.device).long()


def own(kv: KVCache) -> PagedKVCache:
    """The cache as this store made it; another backend's is a programmer error."""
    assert isinstance(kv, PagedKVCache), type(kv)
    return kv

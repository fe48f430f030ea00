"""Writing K and V of new tokens into paged KV, alone and fused with the rotary embedding.

A slot is block * block_size + offset. Slots that are not named keep their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from isoinfer.backends.ops.dtypes import dtype_name
from isoinfer.backends.ops.rope import ROPE, RopeSpec, rope_condition, rope_inputs, rope_reference
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample

DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class CanonicalKV:
    """One layer's KV as references see it: `[B, S, K, D]` each."""

    k_BSKD: torch.Tensor
    v_BSKD: torch.Tensor

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.k_BSKD.shape[1]

    @property
    def parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V, blocks first."""
        return self.k_BSKD, self.v_BSKD


@dataclass(frozen=True, slots=True, kw_only=True)
class KVWriteSpec:
    """Shape of one layer's KV."""

    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeKVWriteSpec:
    """The rotary embedding of q and k, and the KV that k and v are written to."""

    rope: RopeSpec
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str

    @property
    def kv_write(self) -> KVWriteSpec:
        """The spec of the second half."""
        return KVWriteSpec(
            num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, block_size=self.block_size, dtype=self.dtype
        )


def kv_write_reference(
    static: KVWriteSpec, k_TKD: torch.Tensor, v_TKD: torch.Tensor, kv: CanonicalKV, slots_T: torch.Tensor
) -> None:
    """Copy token t's K and V to slot `slots_T[t]`. Slots are distinct. k and v may be strided in T."""
    slots = slots_T.long()
    block, offset = slots // static.block_size, slots % static.block_size
    kv.k_BSKD[block, offset] = k_TKD
    kv.v_BSKD[block, offset] = v_TKD


def rope_kv_write_reference(
    static: RopeKVWriteSpec,
    q_TND: torch.Tensor,
    k_TKD: torch.Tensor,
    v_TKD: torch.Tensor,
    positions_T: torch.Tensor,
    cos_sin_PR: torch.Tensor,
    kv: CanonicalKV,
    slots_T: torch.Tensor,
) -> None:
    """Rotate q in place; write rotated k, and v, to their slots. What k holds afterwards is unspecified."""
    rope_reference(static.rope, q_TND, k_TKD, positions_T, cos_sin_PR)
    kv_write_reference(static.kv_write, k_TKD, v_TKD, kv, slots_T)


def _decompose_rope_kv_write(bind: Callable[..., Callable[..., Any]], static: RopeKVWriteSpec) -> Callable[..., Any]:
    rope, kv_write = bind(ROPE, static.rope), bind(KV_WRITE, static.kv_write)

    def rope_kv_write(
        q_TND: torch.Tensor,
        k_TKD: torch.Tensor,
        v_TKD: torch.Tensor,
        positions_T: torch.Tensor,
        cos_sin_PR: torch.Tensor,
        kv: Any,
        slots_T: torch.Tensor,
    ) -> None:
        rope(q_TND, k_TKD, positions_T, cos_sin_PR)
        kv_write(k_TKD, v_TKD, kv, slots_T)

    return rope_kv_write


def _rope_kv_condition(
    static: RopeKVWriteSpec,
    q_TND: torch.Tensor,
    k_TKD: torch.Tensor,
    v_TKD: torch.Tensor,
    positions_T: torch.Tensor,
    cos_sin_PR: torch.Tensor,
    kv: CanonicalKV,
    slots_T: torch.Tensor,
) -> dict[str, torch.Tensor]:
    sizes = rope_condition(static.rope, q_TND, k_TKD, positions_T, cos_sin_PR)
    size = CanonicalKV(kv.k_BSKD.abs(), kv.v_BSKD.abs())
    kv_write_reference(static.kv_write, sizes["k_TKD"], v_TKD.abs(), size, slots_T)
    return {"q_TND": sizes["q_TND"], "kv.k": size.k_BSKD, "kv.v": size.v_BSKD}


def _inputs(
    dtype: torch.dtype, seed: int, block_size: int
) -> Iterator[tuple[str, RopeKVWriteSpec, tuple[torch.Tensor, ...], CanonicalKV, torch.Tensor]]:
    gen = torch.Generator().manual_seed(seed)
    cases = (
        ("one-token", (1, 2, 1, 32), 32, False),
        ("scattered-strided", (block_size + 5, 4, 2, 64), 64, False),
        ("partial-interleaved", (6, 3, 3, 40), 16, True),
    )
    for label, (T, N, K, D), rotary, interleaved in cases:
        rope = RopeSpec(head_dim=D, rotary_dim=rotary, interleaved=interleaved, dtype=dtype_name(dtype))
        static = RopeKVWriteSpec(rope=rope, num_kv_heads=K, head_dim=D, block_size=block_size, dtype=dtype_name(dtype))
        old = torch.randn(2, 4, block_size, K, D, generator=gen).to(dtype)
        slots = torch.randperm(4 * block_size, generator=gen)[:T].to(torch.int32)
        slots[0] = 4 * block_size - 1 if 4 * block_size - 1 not in slots else slots[0]
        yield label, static, rope_inputs(gen, dtype, (T, N, K, D), rotary), CanonicalKV(old[0], old[1]), slots


def _write_paged_samples(dtype: torch.dtype, seed: int, block_size: int) -> Iterator[Sample]:
    for label, static, (_, k, v, _, _), kv, slots in _inputs(dtype, seed, block_size):
        yield Sample(label=label, static=static.kv_write, args=(k, v, kv, slots))


def _rope_paged_samples(dtype: torch.dtype, seed: int, block_size: int) -> Iterator[Sample]:
    for label, static, (q, k, v, positions, table), kv, slots in _inputs(dtype, seed, block_size):
        yield Sample(label=label, static=static, args=(q, k, v, positions, table, kv, slots))


def _write_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    return _write_paged_samples(dtype, seed, DEFAULT_BLOCK_SIZE)


def _rope_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    return _rope_paged_samples(dtype, seed, DEFAULT_BLOCK_SIZE)


KV_WRITE = OpSpec(
    name="kv_write",
    family="kv",
    signature="kv_write(k_TKD, v_TKD, kv, slots_T)",
    static_type=KVWriteSpec,
    reference=kv_write_reference,
    samples=_write_samples,
    paged_samples=_write_paged_samples,
    error=ErrorModel(kind="exact"),
    writes=("kv",),
    required=True,
)

ROPE_KV_WRITE = OpSpec(
    name="rope_kv_write",
    family="kv",
    signature="rope_kv_write(q_TND, k_TKD, v_TKD, positions_T, cos_sin_PR, kv, slots_T)",
    static_type=RopeKVWriteSpec,
    reference=rope_kv_write_reference,
    samples=_rope_samples,
    paged_samples=_rope_paged_samples,
    error=ErrorModel(kind="float", condition=_rope_kv_condition),
    writes=("q_TND", "kv"),
    clobbers=("k_TKD",),
    decomposition=_decompose_rope_kv_write,
)

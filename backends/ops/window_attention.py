"""Attention over rings: new queries see the ring as it was before the chunk, and the chunk's own K and V.

Only then is the ring written. Writing first would be wrong as soon as a chunk is longer than the ring's margin:
its last tokens take the places of keys that its first queries still see.
A ring is a block of CanonicalKV that stays with a slot; position p is at place p % ring.
Suffixes besides those of spec.py: Q queries of a row, L keys that they may see, W = window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from isoinfer.backends.interface import RingBatch
from isoinfer.backends.ops.composed import torch_composition
from isoinfer.backends.ops.dtypes import compute_dtype, dtype_name, unit_roundoff
from isoinfer.backends.ops.kv import CanonicalKV
from isoinfer.backends.ops.rings import RingCase, fused_qkv, make_ring_batch, make_rings, ring_cases, shuffled
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample

QUERIES_AT_ONCE = 64
"""Of one row: more would need a matrix of scores that grows with the square of the chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAttentionSpec:
    """`window` w: query i sees key j iff i-w < j <= i and j is not below the row's floor. `has_sinks`: one more
    logit per head in the softmax's denominator. `scale` multiplies q.k.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int
    has_sinks: bool
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RingWriteSpec:
    """Shape of one layer's rings."""

    num_kv_heads: int
    head_dim: int
    dtype: str


def window_attention_reference(
    static: WindowAttentionSpec,
    q_TND: torch.Tensor,
    k_TKD: torch.Tensor,
    v_TKD: torch.Tensor,
    kv: CanonicalKV,
    plan: RingBatch,
    sinks_N: torch.Tensor | None,
    out_TND: torch.Tensor,
) -> None:
    """Row r has the queries of its new tokens, whose keys are not in `kv` yet. q, k and v may be strided in T."""
    for part in _parts(static, k_TKD, v_TKD, kv, plan):
        p_NQL = _probabilities(static, q_TND[part.queries], part, sinks_N)
        v_LND = _per_head(static, part.v_LKD, p_NQL.dtype)
        out_TND[part.queries] = torch.einsum("nql,lnd->qnd", p_NQL, v_LND).to(out_TND.dtype)


def ring_write_reference(
    static: RingWriteSpec, k_TKD: torch.Tensor, v_TKD: torch.Tensor, kv: CanonicalKV, plan: RingBatch
) -> None:
    """Copy each token's K and V to its place in its ring; the scratch ring stays as it is.

    What is not to be written is its own old value, put back: places that are named twice get the same twice.
    """
    ring_T, place_T = plan.ring_T.long(), plan.positions_T.long() % kv.block_size
    is_written_T11 = (ring_T < kv.k_BSKD.shape[0] - 1)[:, None, None]
    for new_TKD, ring_BSKD in ((k_TKD, kv.k_BSKD), (v_TKD, kv.v_BSKD)):
        old_TKD = ring_BSKD[ring_T, place_T]
        ring_BSKD[ring_T, place_T] = torch.where(is_written_T11, new_TKD.to(ring_BSKD.dtype), old_TKD)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some queries of one row: which of T, the keys that they may see in the order of positions, and which they do.

    Keys that no query sees are zero, so that what the ring holds there does not matter.
    """

    queries: slice
    k_LKD: torch.Tensor
    v_LKD: torch.Tensor
    seen_QL: torch.Tensor


def _parts(
    static: WindowAttentionSpec, k_TKD: torch.Tensor, v_TKD: torch.Tensor, kv: CanonicalKV, plan: RingBatch
) -> Iterator[_Part]:
    """The rows in parts of at most QUERIES_AT_ONCE queries. Nothing is read back to the host."""
    before, start = static.window - 1, 0
    for r, count in enumerate(plan.query_len_R.tolist()):
        new, length = slice(start, start + count), plan.kv_len_R[r]
        ring_L = plan.ring_R[r].long().expand(before)  # not a number, which indexing would wait for
        position_L = torch.arange(-before - count, 0, device=k_TKD.device) + length
        place_L = position_L[:before] % kv.block_size
        k_LKD = torch.cat((kv.k_BSKD[ring_L, place_L], k_TKD[new].to(kv.k_BSKD.dtype)))
        v_LKD = torch.cat((kv.v_BSKD[ring_L, place_L], v_TKD[new].to(kv.v_BSKD.dtype)))
        floor = plan.floor_R[r].clamp(min=0)
        for first in range(0, count, QUERIES_AT_ONCE):
            num = min(QUERIES_AT_ONCE, count - first)
            keys, query_Q1 = slice(first, first + before + num), position_L[before + first :][:num, None]
            key_1L = position_L[None, keys]
            seen_QL = (key_1L <= query_Q1) & (key_1L > query_Q1 - static.window) & (key_1L >= floor)
            seen_L11 = seen_QL.any(0)[:, None, None]
            yield _Part(
                slice(start + first, start + first + num),
                torch.where(seen_L11, k_LKD[keys], 0),
                torch.where(seen_L11, v_LKD[keys], 0),
                seen_QL,
            )
        start += count


def _per_head(static: WindowAttentionSpec, x_LKD: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x_LKD.to(dtype).repeat_interleave(static.num_heads // static.num_kv_heads, dim=1)


def _probabilities(
    static: WindowAttentionSpec, q_QND: torch.Tensor, part: _Part, sinks_N: torch.Tensor | None
) -> torch.Tensor:
    q = q_QND.to(compute_dtype(q_QND))
    s_NQL = torch.einsum("qnd,lnd->nql", q, _per_head(static, part.k_LKD, q.dtype)) * static.scale
    s_NQL = s_NQL.masked_fill(~part.seen_QL, -torch.inf)
    if sinks_N is not None:
        s_NQL = torch.cat((s_NQL, sinks_N.to(q.dtype)[:, None, None].expand(-1, len(q), 1)), dim=-1)
    return torch.softmax(s_NQL, dim=-1)[..., : part.seen_QL.shape[1]]


def _condition(
    static: WindowAttentionSpec,
    q_TND: torch.Tensor,
    k_TKD: torch.Tensor,
    v_TKD: torch.Tensor,
    kv: CanonicalKV,
    plan: RingBatch,
    sinks_N: torch.Tensor | None,
    out_TND: torch.Tensor,
) -> torch.Tensor:
    """As of paged_attention: the sum, the scores through the softmax, and probabilities rounded to the KV dtype."""
    size_TND = torch.zeros_like(q_TND)
    rounding = unit_roundoff(static.dtype) / unit_roundoff("float32") if static.dtype != "float32" else 0.0
    for part in _parts(static, k_TKD, v_TKD, kv, plan):
        p_NQL = _probabilities(static, q_TND[part.queries], part, sinks_N)
        k_LND, v_LND = (_per_head(static, x, p_NQL.dtype).abs() for x in (part.k_LKD, part.v_LKD))
        score_NQL = torch.einsum("qnd,lnd->nql", q_TND[part.queries].abs(), k_LND) * abs(static.scale)
        score_NQL = score_NQL.masked_fill(~part.seen_QL, 0)
        blur_NQL = static.window**0.5 + 2 * static.head_dim**0.5 * score_NQL.amax(-1, keepdim=True)
        size = torch.einsum("nql,lnd->qnd", p_NQL * blur_NQL, v_LND)
        spread = torch.einsum("nql,lnd->qnd", p_NQL.square(), v_LND.square()).sqrt()
        size_TND[part.queries] = size + rounding * spread
    return size_TND


def _attention_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    for case in ring_cases(QUERIES_AT_ONCE):
        yield _attention_sample(case, dtype, gen)


def _attention_sample(case: RingCase, dtype: torch.dtype, gen: torch.Generator) -> Sample:
    N, K, D = case.heads
    static = WindowAttentionSpec(
        num_heads=N,
        num_kv_heads=K,
        head_dim=D,
        scale=D**-0.5,
        window=case.window,
        has_sinks=case.sinks,
        dtype=dtype_name(dtype),
    )
    plan = make_ring_batch(case.rows, shuffled(len(case.rows), gen), ring=case.ring, scratch=len(case.rows))
    kv = make_rings(case, plan, dtype, gen)
    q, k, v = fused_qkv(case, dtype, gen)
    sinks = torch.randn(N, generator=gen).to(dtype) if case.sinks else None
    return Sample(label=case.label, static=static, args=(q, k, v, kv, plan, sinks, torch.full_like(q, torch.nan)))


def _write_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    """The same rows, over rings that are full."""
    gen = torch.Generator().manual_seed(seed)
    for case in ring_cases(QUERIES_AT_ONCE):
        _, K, D = case.heads
        old = torch.randn(2, len(case.rows) + 1, case.ring, K, D, generator=gen).to(dtype)
        static = RingWriteSpec(num_kv_heads=K, head_dim=D, dtype=dtype_name(dtype))
        plan = make_ring_batch(case.rows, shuffled(len(case.rows), gen), ring=case.ring, scratch=len(case.rows))
        _, k, v = fused_qkv(case, dtype, gen)
        yield Sample(label=case.label, static=static, args=(k, v, CanonicalKV(old[0], old[1]), plan))


WINDOW_ATTENTION = OpSpec(
    name="window_attention",
    family="attention",
    signature="window_attention(q_TND, k_TKD, v_TKD, kv, plan, sinks_N, out_TND)",
    static_type=WindowAttentionSpec,
    reference=window_attention_reference,
    samples=_attention_samples,
    error=ErrorModel(kind="float", condition=_condition),
    writes=("out_TND",),
    decomposition=torch_composition(window_attention_reference),
)

RING_WRITE = OpSpec(
    name="ring_write",
    family="kv",
    signature="ring_write(k_TKD, v_TKD, kv, plan)",
    static_type=RingWriteSpec,
    reference=ring_write_reference,
    samples=_write_samples,
    error=ErrorModel(kind="exact"),
    writes=("kv",),
    decomposition=torch_composition(ring_write_reference),
)

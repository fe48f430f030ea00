"""Attention of new queries over paged KV: prefill, decode and mixed rows in one call.

What a row does not own must not matter, whatever bits it holds: slots past its length, blocks that
left the window as a whole (they are released), blocks of nobody. NaN there must not reach the output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from isoinfer.backends.interface import AttentionBatch
from isoinfer.backends.ops.dtypes import compute_dtype, dtype_name, unit_roundoff
from isoinfer.backends.ops.kv import DEFAULT_BLOCK_SIZE, CanonicalKV
from isoinfer.backends.ops.paging import PagedRow, make_batch, make_kv
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """`window` w: query i sees key j iff i-w < j <= i. `softcap` c: scores become c*tanh(s/c) before the mask.

    `has_sinks`: one more logit per head in the softmax's denominator. `scale` multiplies q.k.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    block_size: int
    window: int | None
    softcap: float | None
    has_sinks: bool
    dtype: str


def paged_attention_reference(
    static: AttentionSpec,
    q_TND: torch.Tensor,
    kv: CanonicalKV,
    plan: AttentionBatch,
    sinks_N: torch.Tensor | None,
    out_TND: torch.Tensor,
) -> None:
    """Row r has query_len_R[r] queries at the last positions of its kv_len keys. q may be strided in T."""
    for start, end, k_LKD, v_LKD in _rows(static, kv, plan):
        p_NQL = _probabilities(static, q_TND[start:end], k_LKD, sinks_N)
        v_LND = _per_head(static, v_LKD, p_NQL.dtype)
        out_TND[start:end] = torch.einsum("nql,lnd->qnd", p_NQL, v_LND).to(out_TND.dtype)


def _rows(
    static: AttentionSpec, kv: CanonicalKV, plan: AttentionBatch
) -> Iterator[tuple[int, int, torch.Tensor, torch.Tensor]]:
    """Query range and dense K, V `[L, K, D]` of each row; keys that no query sees are zeroed."""
    start = 0
    for r, (num_queries, length) in enumerate(
        zip(plan.query_len_R.tolist(), plan.kv_len_device_R.tolist(), strict=True)
    ):
        position = torch.arange(length, device=kv.k_BSKD.device)
        block = plan.block_table_RB[r].long()[position // kv.block_size]
        k_LKD, v_LKD = kv.k_BSKD[block, position % kv.block_size], kv.v_BSKD[block, position % kv.block_size]
        if static.window is not None:
            unseen = max(0, length - num_queries - static.window + 1)
            k_LKD[:unseen], v_LKD[:unseen] = 0, 0
        yield start, start + num_queries, k_LKD, v_LKD
        start += num_queries


def _per_head(static: AttentionSpec, x_LKD: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x_LKD.to(dtype).repeat_interleave(static.num_heads // static.num_kv_heads, dim=1)


def _probabilities(
    static: AttentionSpec, q_QND: torch.Tensor, k_LKD: torch.Tensor, sinks_N: torch.Tensor | None
) -> torch.Tensor:
    q = q_QND.to(compute_dtype(q_QND))
    s_NQL = torch.einsum("qnd,lnd->nql", q, _per_head(static, k_LKD, q.dtype)) * static.scale
    if static.softcap is not None:
        s_NQL = static.softcap * torch.tanh(s_NQL / static.softcap)
    _, num_queries, length = s_NQL.shape
    key_1L = torch.arange(length, device=q.device)[None, :]
    query_Q1 = torch.arange(length - num_queries, length, device=q.device)[:, None]
    seen_QL = key_1L <= query_Q1
    if static.window is not None:
        seen_QL &= key_1L > query_Q1 - static.window
    s_NQL = s_NQL.masked_fill(~seen_QL, -torch.inf)
    if sinks_N is not None:
        s_NQL = torch.cat((s_NQL, sinks_N.to(q.dtype)[:, None, None].expand(-1, num_queries, 1)), dim=-1)
    return torch.softmax(s_NQL, dim=-1)[..., :length]


def _condition(
    static: AttentionSpec,
    q_TND: torch.Tensor,
    kv: CanonicalKV,
    plan: AttentionBatch,
    sinks_N: torch.Tensor | None,
    out_TND: torch.Tensor,
) -> torch.Tensor:
    """Error of the sum, of the scores through the softmax, and of probabilities rounded to the KV dtype.

    The last is what every matrix-unit kernel does to feed its second product; it counts in units of the
    accumulator's roundoff, as a root of squares because the roundings are independent.
    """
    size_TND = torch.zeros_like(q_TND)
    rounding = unit_roundoff(static.dtype) / unit_roundoff("float32") if static.dtype != "float32" else 0.0
    for start, end, k_LKD, v_LKD in _rows(static, kv, plan):
        p_NQL = _probabilities(static, q_TND[start:end], k_LKD, sinks_N)
        v_LND = _per_head(static, v_LKD, p_NQL.dtype).abs()
        k_LND = _per_head(static, k_LKD, p_NQL.dtype).abs()
        score_NQL = torch.einsum("qnd,lnd->nql", q_TND[start:end].abs(), k_LND) * abs(static.scale)
        blur_NQL = len(k_LKD) ** 0.5 + 2 * static.head_dim**0.5 * score_NQL.amax(-1, keepdim=True)
        size = torch.einsum("nql,lnd->qnd", p_NQL * blur_NQL, v_LND)
        spread = torch.einsum("nql,lnd->qnd", p_NQL.square(), v_LND.square()).sqrt()
        size_TND[start:end] = size + rounding * spread
    return size_TND


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One sample's shape; rows are (queries, KV length)."""

    label: str
    heads: tuple[int, int, int]
    rows: tuple[tuple[int, int], ...]
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False


def _cases(block_size: int) -> tuple[_Case, ...]:
    b = block_size
    mixed = ((1, 1), (3, 3), (1, 2 * b + 1), (5, b), (b + 2, 2 * b + 3))
    return (
        _Case(label="first-token", heads=(2, 2, 32), rows=((1, 1),)),
        _Case(label="decode-gqa", heads=(6, 2, 64), rows=((1, b), (1, b + 1), (1, 3 * b - 1))),
        _Case(label="prefill-odd", heads=(4, 1, 40), rows=((b + 3, b + 3),)),
        _Case(label="mixed", heads=(8, 2, 32), rows=mixed),
        _Case(label="window", heads=(4, 2, 32), rows=((*mixed, (2, 3 * b))), window=b // 2 + 1),
        _Case(label="window-one", heads=(2, 1, 32), rows=((1, 5), (4, 9)), window=1),
        _Case(label="softcap", heads=(4, 2, 32), rows=mixed, softcap=5.0),
        _Case(label="sinks-window", heads=(8, 2, 64), rows=mixed, window=b, sinks=True),
    )


def _sample(case: _Case, dtype: torch.dtype, gen: torch.Generator, block_size: int) -> Sample:
    N, K, D = case.heads
    static = AttentionSpec(
        num_heads=N,
        num_kv_heads=K,
        head_dim=D,
        scale=D**-0.5,
        block_size=block_size,
        window=case.window,
        softcap=case.softcap,
        has_sinks=case.sinks,
        dtype=dtype_name(dtype),
    )
    rows = tuple(PagedRow(num_queries=q, length=length, window=case.window) for q, length in case.rows)
    batch = make_batch(rows, block_size, gen)
    kv = make_kv(rows, batch, (K, D), dtype, gen)
    num_tokens = sum(q for q, _ in case.rows)
    # scores with a spread above 1 make a wrong mask or a dropped block visible; q is a view of a fused projection
    q = (2 * torch.randn(num_tokens, N + 2 * K, D, generator=gen)).to(dtype)[:, :N]
    sinks = torch.randn(N, generator=gen).to(dtype) if case.sinks else None
    out = torch.full((num_tokens, N, D), torch.nan, dtype=dtype)
    return Sample(label=case.label, static=static, args=(q, kv, batch, sinks, out))


def _paged_samples(dtype: torch.dtype, seed: int, block_size: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    for case in _cases(block_size):
        yield _sample(case, dtype, gen, block_size)


def _samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    return _paged_samples(dtype, seed, DEFAULT_BLOCK_SIZE)


PAGED_ATTENTION = OpSpec(
    name="paged_attention",
    family="attention",
    signature="paged_attention(q_TND, kv, plan, sinks_N, out_TND)",
    static_type=AttentionSpec,
    reference=paged_attention_reference,
    samples=_samples,
    paged_samples=_paged_samples,
    error=ErrorModel(kind="float", condition=_condition),
    writes=("out_TND",),
    required=True,
)

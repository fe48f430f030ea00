"""Rotary embedding, in place on q and k. The table comes from `rope_table`; this file only rotates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from isoinfer.backends.ops.dtypes import compute_dtype, dtype_name
from isoinfer.backends.ops.rope_table import RopeParams, rope_table
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Pairs are (i, i + rotary_dim/2), or (2i, 2i + 1) if `interleaved`. Dims from `rotary_dim` on pass through."""

    head_dim: int
    rotary_dim: int
    interleaved: bool
    dtype: str


def rope_reference(
    static: RopeSpec, q_TND: torch.Tensor, k_TKD: torch.Tensor, positions_T: torch.Tensor, cos_sin_PR: torch.Tensor
) -> None:
    """Rotate q and k in place. Both may be strided in T (views of a fused projection)."""
    cos_sin_TR = cos_sin_PR[positions_T.long()]
    for x in (q_TND, k_TKD):
        x[..., : static.rotary_dim] = _rotate(static, x, cos_sin_TR).to(x.dtype)


def _rotate(static: RopeSpec, x_TND: torch.Tensor, cos_sin_TR: torch.Tensor) -> torch.Tensor:
    x = x_TND[..., : static.rotary_dim].to(compute_dtype(x_TND))
    cos_T1R, sin_T1R = cos_sin_TR.to(x.dtype).unsqueeze(1).chunk(2, dim=-1)
    a, b = (x[..., 0::2], x[..., 1::2]) if static.interleaved else x.chunk(2, dim=-1)
    new_a, new_b = a * cos_T1R - b * sin_T1R, b * cos_T1R + a * sin_T1R
    return torch.stack((new_a, new_b), -1).flatten(-2) if static.interleaved else torch.cat((new_a, new_b), -1)


def rope_condition(
    static: RopeSpec, q_TND: torch.Tensor, k_TKD: torch.Tensor, positions_T: torch.Tensor, cos_sin_PR: torch.Tensor
) -> dict[str, torch.Tensor]:
    """|a||cos| + |b||sin| of each output, by output name."""
    cos_TR, sin_TR = cos_sin_PR[positions_T.long()].abs().chunk(2, dim=-1)
    table_TR = torch.cat((cos_TR, -sin_TR), dim=-1)  # -sin turns the difference a*cos - b*sin into a sum
    sizes = {}
    for name, x in (("q_TND", q_TND), ("k_TKD", k_TKD)):
        size = x.abs()
        plus = _rotate(static, size, table_TR).abs()
        minus = _rotate(static, size, torch.cat((cos_TR, sin_TR), dim=-1)).abs()
        size[..., : static.rotary_dim] = torch.maximum(plus, minus)
        sizes[name] = size
    return sizes


def rope_inputs(
    gen: torch.Generator, dtype: torch.dtype, shape: tuple[int, int, int, int], rotary_dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v as strided views of one fused projection, positions and table; `shape` is (T, N, K, D)."""
    T, N, K, D = shape
    qkv = torch.randn(T, N + 2 * K, D, generator=gen).to(dtype)
    q, k, v = qkv[:, :N], qkv[:, N : N + K], qkv[:, N + K :]
    positions = torch.randint(0, 256, (T,), generator=gen, dtype=torch.int32)
    return q, k, v, positions, rope_table(RopeParams(theta=1e4, rotary_dim=rotary_dim), 256)


def _samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    cases = (
        ("one-token", (1, 2, 2, 32), 32, False),
        ("gqa-strided", (9, 6, 2, 64), 64, False),
        ("interleaved", (5, 4, 1, 64), 64, True),
        ("partial", (6, 4, 4, 80), 32, False),
        ("partial-interleaved", (3, 2, 1, 48), 16, True),
    )
    for label, shape, rotary_dim, interleaved in cases:
        static = RopeSpec(head_dim=shape[3], rotary_dim=rotary_dim, interleaved=interleaved, dtype=dtype_name(dtype))
        q, k, _, positions, table = rope_inputs(gen, dtype, shape, rotary_dim)
        yield Sample(label=label, static=static, args=(q, k, positions, table))


ROPE = OpSpec(
    name="rope",
    family="rope",
    signature="rope(q_TND, k_TKD, positions_T, cos_sin_PR)",
    static_type=RopeSpec,
    reference=rope_reference,
    samples=_samples,
    error=ErrorModel(kind="float", condition=rope_condition),
    writes=("q_TND", "k_TKD"),
    required=True,
)

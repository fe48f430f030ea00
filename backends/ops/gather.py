"""Rows of an activation by index, for instance the last token of each request. Exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from isoinfer.backends.ops.dtypes import dtype_name
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherSpec:
    """`width` is the row length."""

    width: int
    dtype: str


def gather_rows_reference(static: GatherSpec, x_TH: torch.Tensor, rows_R: torch.Tensor) -> torch.Tensor:
    """A fresh tensor with row `rows_R[r]` of x at r. Rows may repeat and come in any order."""
    return x_TH[rows_R.long()]


def _samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    for label, T, H, rows in (("one", 1, 16, [0]), ("repeats-unordered", 9, 35, [8, 0, 3, 3]), ("none", 4, 8, [])):
        static = GatherSpec(width=H, dtype=dtype_name(dtype))
        x = torch.randn(T, H, generator=gen).to(dtype)
        yield Sample(label=label, static=static, args=(x, torch.tensor(rows, dtype=torch.int32)))


GATHER_ROWS = OpSpec(
    name="gather_rows",
    family="gather",
    signature="gather_rows(x_TH, rows_R) -> out_RH",
    static_type=GatherSpec,
    reference=gather_rows_reference,
    samples=_samples,
    error=ErrorModel(kind="exact"),
    required=True,
)

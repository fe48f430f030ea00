"""Token embedding: rows of a table by id. Exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from isoinfer.backends.ops.dtypes import dtype_name
from isoinfer.backends.ops.linear import DenseWeight
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSpec:
    """The table is `[vocab_size, hidden_size]` in `dtype`."""

    vocab_size: int
    hidden_size: int
    dtype: str


def embedding_reference(static: EmbeddingSpec, ids_T: torch.Tensor, weight: DenseWeight) -> torch.Tensor:
    """Row `ids_T[t]` of the table for each token."""
    return weight.tensor_NK[ids_T.long()]


def _samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    for label, T, V, H in (("one-token", 1, 50, 32), ("repeats", 40, 11, 48), ("odd", 9, 333, 67)):
        table = torch.randn(V, H, generator=gen).to(dtype)
        ids = torch.randint(0, V, (T,), generator=gen, dtype=torch.int32)
        ids[0] = V - 1
        static = EmbeddingSpec(vocab_size=V, hidden_size=H, dtype=dtype_name(dtype))
        yield Sample(label=label, static=static, args=(ids, DenseWeight(table)))


EMBEDDING = OpSpec(
    name="embedding",
    family="embedding",
    signature="embedding(ids_T, weight) -> out_TH",
    static_type=EmbeddingSpec,
    reference=embedding_reference,
    samples=_samples,
    error=ErrorModel(kind="exact"),
    required=True,
)

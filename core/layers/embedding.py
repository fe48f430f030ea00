"""The bound token embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoinfer.backends.ops.embedding import EMBEDDING, EmbeddingSpec

if TYPE_CHECKING:
    import torch

    from isoinfer.layers.parts import Parts


class Embedding:
    """ids_T -> out_TH, a fresh tensor that the caller may write."""

    def __init__(self, parts: Parts, name: str, *, vocab_size: int, hidden_size: int) -> None:
        self.weight = parts.weight(name)
        spec = EmbeddingSpec(vocab_size=vocab_size, hidden_size=hidden_size, dtype=parts.dtype)
        self.embedding = parts.bind(EMBEDDING, spec)

    def __call__(self, ids_T: torch.Tensor) -> torch.Tensor:
        out_TH: torch.Tensor = self.embedding(ids_T, self.weight)
        return out_TH

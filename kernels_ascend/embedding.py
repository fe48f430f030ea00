"""Token embedding: the rows of a table that the ids name. The kernel is that of gather_rows."""

from __future__ import annotations

from collections.abc import Callable

import torch

from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import Launcher
from isoinfer.backends.ops import DenseWeight, EmbeddingSpec
from isoinfer.kernels_ascend.gather_rows import case, descriptions, make_gather, pick_config, refuse_dtype

__all__ = ["case", "descriptions", "make_embedding", "pick_config", "refuse"]


def refuse(spec: EmbeddingSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    return refuse_dtype(spec.dtype)


def make_embedding(spec: EmbeddingSpec, soc: Soc, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """embedding(ids_T, weight: DenseWeight) -> out_TH."""
    gather = make_gather(spec.hidden_size, spec.dtype, soc, launcher)

    def embedding(ids_T: torch.Tensor, weight: DenseWeight) -> torch.Tensor:
        return gather(weight.tensor_NK, ids_T)

    return embedding

"""One step's input to a model: device tensors and a backend's attention plan. No masks, no host lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from isoinfer.backends.interface import AttentionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """All rows' new tokens, concatenated; every tensor is int32 with `num_tokens` entries.

    `positions_T`: position in its sequence. `slots_T`: where its K and V go, block * block_size + offset.
    """

    token_ids_T: torch.Tensor
    positions_T: torch.Tensor
    slots_T: torch.Tensor
    plan: AttentionPlan
    num_tokens: int

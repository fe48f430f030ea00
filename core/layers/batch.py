"""One step's input to a model: device tensors and a backend's attention plans. No masks, no host lists.

Suffix: T tokens of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from isoinfer.backends.interface import AttentionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInputs:
    """What the layers of one KV group read. `slots_T`: where K and V go in it, block * block_size + offset.

    Of a group with rings, `plan` is a RingBatch and `slots_T` its `ring_T`.
    """

    slots_T: torch.Tensor
    plan: AttentionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """All rows' new tokens, concatenated; every tensor is int32 with `num_tokens` entries.

    `positions_T`: position in its sequence. `groups`: one for each KV group, in the order of the model's specs.
    """

    token_ids_T: torch.Tensor
    positions_T: torch.Tensor
    groups: tuple[GroupInputs, ...]
    num_tokens: int

"""What a family adds to the one decoder: how its config is read and how its sparse layers are named on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isoinfer.models.config import ModelConfig, MoeConfig
    from isoinfer.weights.loader import WeightRule

MoeRules = Callable[["ModelConfig", "MoeConfig", int], "tuple[WeightRule, ...]"]
"""(config, its moe, layer) to the rules for `layers.{layer}.router`, `.w13`, `.w2` and their biases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture name of Hugging Face's configs.

    `from_hf` raises CheckpointError for what the config lacks. `moe_rules` is None where no layer is sparse.
    """

    architecture: str
    from_hf: Callable[[Mapping[str, Any]], ModelConfig]
    moe_rules: MoeRules | None = None

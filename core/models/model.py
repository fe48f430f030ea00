"""A model before it runs: its config, what it needs (weights, KV, costs, splits) and how it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from isoinfer.backends.interface import KVSpec, ModelSpec
from isoinfer.backends.ops.rope_table import rope_table
from isoinfer.errors import CheckpointError
from isoinfer.layers.parts import Bind, Parts
from isoinfer.models.costs import bytes_per_token, expert_bytes, expert_share, flops_per_token, weight_bytes
from isoinfer.models.decoder import build_decoder
from isoinfer.models.parallel import Split, parallel_plan
from isoinfer.models.weight_rules import decoder_rules, ignored_tensors

if TYPE_CHECKING:
    import torch

    from isoinfer.backends.interface import Forward, Weight
    from isoinfer.models.config import ModelConfig
    from isoinfer.models.family import Family
    from isoinfer.weights.loader import WeightRule


class Model:
    """One decoder of one family with one config. Holds no tensor; `build` may be called more than once."""

    def __init__(self, family: Family, config: ModelConfig) -> None:
        self.family, self.config = family, config

    def with_rings(self) -> Model:
        """The same model with rings for its windows. CheckpointError where no layer has one."""
        if not any(self.config.windows):
            raise CheckpointError(
                f"{self.config.architecture}: no layer has a window, so there is nothing to keep in rings; "
                "leave window_kv (--window-kv) out"
            )
        return Model(self.family, replace(self.config, rings=True))

    def kv_specs(self, dtype: str, num_drafts: int = 0) -> tuple[KVSpec, ...]:
        """One group for each distinct window, "full" for none; those with rings come last.

        `num_drafts`: most drafts of a step, which a ring must survive when they are rejected.
        """
        config = self.config
        return tuple(
            KVSpec(
                name="full" if window is None else f"window_{window}",
                layers=tuple(layer for layer, own in enumerate(config.windows) if own == window),
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                dtype=dtype,
                window=window,
                ring=window + num_drafts + 1 if window in config.ring_windows else None,
            )
            for window in config.kv_windows
        )

    def weight_rules(self) -> tuple[WeightRule, ...]:
        """How the checkpoint's tensors become this model's weights."""
        return decoder_rules(self.family, self.config)

    def ignored_tensors(self) -> tuple[str, ...]:
        """Glob patterns of checkpoint tensors that no rule needs and that are no mistake."""
        return ignored_tensors(self.config)

    def parallel_plan(self) -> tuple[Split, ...]:
        """How each weight may be split over ranks."""
        return parallel_plan(self.config)

    def costs(self, dtype: str = "bfloat16", num_drafts: int = 0) -> ModelSpec:
        """Work and bytes per token, with weights and KV in `dtype`. `num_drafts` as of `kv_specs`."""
        return ModelSpec(
            architecture=self.config.architecture,
            kv_specs=self.kv_specs(dtype, num_drafts),
            flops_per_token=flops_per_token(self.config),
            bytes_per_token=bytes_per_token(self.config, dtype),
            weight_bytes=weight_bytes(self.config, dtype),
            num_layers=self.config.num_layers,
            vocab_size=self.config.vocab_size,
            hidden_size=self.config.hidden_size,
            max_position=self.config.max_position,
            expert_bytes=expert_bytes(self.config, dtype),
            expert_share=expert_share(self.config),
        )

    def build(
        self,
        bind: Bind,
        weights: Mapping[str, Weight],
        dtype: str,
        block_size: int,
        max_positions: int,
        place: Callable[[torch.Tensor], torch.Tensor],
        quant: str | None,
    ) -> Forward:
        """Bind all ops over prepared `weights` (named as in `weight_rules`).

        `block_size`: tokens in a KV block. `max_positions`: no token may have a position at or beyond
        it. `place`: puts a host tensor on the device (the rope table). `quant`: what the weights
        were loaded with. Raises what `bind` raises where the backend has no provider.
        """
        parts = Parts(bind=bind, weights=weights, dtype=dtype, block_size=block_size, quant=quant)
        return build_decoder(parts, self.config, place(rope_table(self.config.rope, max_positions)))

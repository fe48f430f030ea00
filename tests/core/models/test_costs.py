"""Costs against the parameters of the real models."""

from __future__ import annotations

from typing import Any

from isoinfer.models.costs import (
    active_parameters,
    bytes_per_token,
    expert_bytes,
    expert_share,
    flops_per_token,
    weight_bytes,
)
from isoinfer.models.registry import resolve
from isoinfer.weights.open import open_checkpoint


def test_active_parameters_are_the_matrices_less_the_experts_not_chosen(case: Any) -> None:
    config = resolve(open_checkpoint(str(case.path)).config).config
    idle = 0
    if config.moe is not None:
        moe = config.moe
        expert = 3 * config.hidden_size * moe.intermediate_size
        idle = len(moe.layers) * (moe.num_experts - moe.top_k) * expert
    matrices = sum(
        p.numel() for name, p in case.oracle.named_parameters() if p.dim() >= 2 and not name.endswith("_proj_bias")
    )
    look_up = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    assert active_parameters(config) == matrices - look_up - idle
    assert flops_per_token(config) == 2 * active_parameters(config)
    assert weight_bytes(config, "bfloat16") == 2 * (active_parameters(config) + config.hidden_size)
    assert bytes_per_token(config, "float32") == 2 * weight_bytes(config, "bfloat16") + 4 * (
        2 * config.num_layers * config.kv_size
    )


def test_all_experts_and_what_is_read_of_them_add_up(case: Any) -> None:
    config = resolve(open_checkpoint(str(case.path)).config).config
    chosen = expert_bytes(config, "bfloat16") * expert_share(config)
    if config.moe is None:
        assert (chosen, expert_share(config)) == (0, 0)
        return
    matrices = sum(
        p.numel() for name, p in case.oracle.named_parameters() if "experts" in name and not name.endswith("_proj_bias")
    )
    assert expert_bytes(config, "float32") == 4 * matrices
    assert chosen < weight_bytes(config, "bfloat16")

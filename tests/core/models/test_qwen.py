"""Configs of Qwen2, Qwen3 and Qwen3-MoE, and how experts are merged."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isoinfer.errors import CheckpointError
from isoinfer.models.qwen import qwen2_from_hf, qwen3_from_hf, qwen3_moe_from_hf, qwen3_moe_rules

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "num_hidden_layers": 6}


def test_qwen2_windows(tiny_config: dict[str, Any]) -> None:
    window = {"sliding_window": 9, "max_window_layers": 1}
    assert qwen2_from_hf({**tiny_config, **window}).windows == (None, None)
    used = {**tiny_config, **window, "use_sliding_window": True}
    assert qwen2_from_hf(used).windows == (None, 9)
    typed = {**used, "layer_types": ["sliding_attention", "full_attention"]}
    assert qwen2_from_hf(typed).windows == (9, None)


def test_switches(tiny_config: dict[str, Any]) -> None:
    qwen2, qwen3 = qwen2_from_hf(tiny_config), qwen3_from_hf(tiny_config)
    assert (qwen2.qkv_bias, qwen2.o_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.o_bias, qwen3.qk_norm, qwen3.head_dim) == (False, False, True, 128)


@pytest.mark.parametrize(
    ("step", "dense", "layers"),
    [(1, None, (0, 1, 2, 3, 4, 5)), (2, [], (1, 3, 5)), (1, [0, 5], (1, 2, 3, 4)), (3, [2], (5,))],
)
def test_which_layers_are_sparse(
    tiny_config: dict[str, Any], step: int, dense: list[int] | None, layers: tuple[int, ...]
) -> None:
    config = qwen3_moe_from_hf({**tiny_config, **MOE, "decoder_sparse_step": step, "mlp_only_layers": dense})
    assert config.moe is not None
    assert config.moe.layers == layers
    assert [layer for layer in range(6) if config.moe_at(layer)] == list(layers)


def test_no_sparse_layer_is_a_dense_model(tiny_config: dict[str, Any]) -> None:
    assert qwen3_moe_from_hf({**tiny_config, **MOE, "decoder_sparse_step": 7}).moe is None


def test_moe_keys(tiny_config: dict[str, Any]) -> None:
    renamed = {("num_local_experts" if key == "num_experts" else key): value for key, value in MOE.items()}
    config = {**tiny_config, "norm_topk_prob": True}
    assert qwen3_moe_from_hf({**config, **renamed}) == qwen3_moe_from_hf({**config, **MOE})
    with pytest.raises(CheckpointError, match="'moe_intermediate_size' is missing"):
        qwen3_moe_from_hf({**config, **MOE, "moe_intermediate_size": None})


def test_expert_rules_stack_gate_over_up(tiny_config: dict[str, Any]) -> None:
    config = qwen3_moe_from_hf({**tiny_config, **MOE})
    assert config.moe is not None
    rules = {rule.name: rule for rule in qwen3_moe_rules(config, config.moe, 3)}
    w13, w2 = rules["layers.3.w13"], rules["layers.3.w2"]
    assert w13.sources[2:4] == tuple(f"model.layers.3.mlp.experts.1.{part}_proj.weight" for part in ("gate", "up"))
    merged = w13.build(tuple(torch.full((8, 64), float(index)) for index in range(8)))
    assert merged.shape == w13.shape
    assert merged[:, [0, 7, 8, 15], 0].tolist() == [[2.0 * e, 2.0 * e, 2.0 * e + 1, 2.0 * e + 1] for e in range(4)]
    assert w2.build(tuple(torch.zeros(64, 8) for _ in range(4))).shape == w2.shape

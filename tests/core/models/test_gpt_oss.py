"""gpt-oss: config and the layout of its experts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isoinfer.errors import CheckpointError
from isoinfer.models.gpt_oss import deinterleave_rows, gpt_oss_from_hf, gpt_oss_moe_rules

EXTRA: dict[str, Any] = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 5,
    "rope_theta": 150000,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64, "truncate": False},
}


def test_config(tiny_config: dict[str, Any]) -> None:
    config = gpt_oss_from_hf({**tiny_config, **EXTRA})
    assert config.windows == (5, None)
    assert (config.sinks, config.qkv_bias, config.o_bias, config.rope.truncate) == (True, True, True, False)
    assert config.moe is not None
    assert (config.moe.layers, config.moe.route_kind, config.moe.bias) == ((0, 1), "topk_softmax", True)
    assert (config.moe.activation, config.moe.alpha, config.moe.limit) == ("swiglu_clipped", 1.702, 7.0)


@pytest.mark.parametrize("key", ["rope_scaling", "num_local_experts", "num_experts_per_tok", "sliding_window"])
def test_missing_key_is_named(tiny_config: dict[str, Any], key: str) -> None:
    with pytest.raises(CheckpointError, match=f"'{key}'.* is missing"):
        gpt_oss_from_hf({**tiny_config, **EXTRA, key: None})


def test_deinterleave() -> None:
    assert deinterleave_rows(torch.arange(12).view(2, 6)).tolist() == [[0, 2, 4, 1, 3, 5], [6, 8, 10, 7, 9, 11]]


def test_expert_rules_make_out_by_in_with_gate_first(tiny_config: dict[str, Any]) -> None:
    config = gpt_oss_from_hf({**tiny_config, **EXTRA})
    assert config.moe is not None
    rules = {rule.name: rule for rule in gpt_oss_moe_rules(config, config.moe, 0)}
    rule, wide = rules["layers.0.w13"], config.intermediate_size
    stored_EHJ = torch.randn(4, 64, 2 * wide)
    w13 = rule.build((stored_EHJ,))
    assert w13.shape == rule.shape
    assert torch.equal(w13[1, 3], stored_EHJ[1, :, 6])
    assert torch.equal(w13[1, wide + 3], stored_EHJ[1, :, 7])
    stored_EIH = torch.randn(4, wide, 64)
    assert torch.equal(rules["layers.0.w2"].build((stored_EIH,)), stored_EIH.transpose(1, 2))

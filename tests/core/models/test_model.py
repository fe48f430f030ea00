"""What a model says about itself, and that building it takes only what it declared."""

from __future__ import annotations

from typing import Any

import torch

from isoinfer.models.registry import resolve


def test_kv_specs_have_one_group_with_a_shared_window(tiny_config: dict[str, Any]) -> None:
    (plain,) = resolve(tiny_config).kv_specs("float16")
    assert (plain.name, plain.layers, plain.window, plain.dtype) == ("full", (0, 1), None, "float16")
    assert (plain.num_kv_heads, plain.head_dim) == (4, 16)
    mistral = {**tiny_config, "architectures": ["MistralForCausalLM"], "sliding_window": 7}
    assert resolve(mistral).kv_specs("float32")[0].window == 7
    mixed = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 7}
    qwen = resolve({**tiny_config, **mixed, "max_window_layers": 1})
    assert qwen.config.windows == (None, 7)
    assert qwen.kv_specs("float32")[0].window is None


def test_costs(tiny_config: dict[str, Any]) -> None:
    spec = resolve(tiny_config).costs("float32")
    assert (spec.architecture, spec.num_layers) == ("LlamaForCausalLM", 2)
    assert spec.kv_specs[0].dtype == "float32"
    assert spec.bytes_per_token == 2 * resolve(tiny_config).costs("bfloat16").bytes_per_token


def test_build_binds_with_the_quantisation_and_block_size_it_was_given(tiny_config: dict[str, Any]) -> None:
    model, bound = resolve(tiny_config), []

    def bind(op: Any, static: Any) -> Any:
        bound.append((op.name, static))
        return None

    weights = {rule.name: torch.empty(rule.shape) for rule in model.weight_rules()}
    model.build(bind, weights, "bfloat16", 16, 32, lambda table: table, "int8")
    statics: dict[str, list[Any]] = {}
    for name, static in bound:
        statics.setdefault(name, []).append(static)
    assert {static.quant for static in statics["linear"]} == {"int8"}
    assert [static.out_dtype for static in statics["linear"]].count("float32") == 1
    assert {static.block_size for static in statics["paged_attention"]} == {16}
    assert len(statics["rms_norm"]) == 1
    assert len(statics["add_rms_norm"]) == 4

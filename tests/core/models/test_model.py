"""What a model says about itself, and that building it takes only what it declared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isoinfer.errors import CheckpointError
from isoinfer.models.registry import resolve


def test_layers_without_a_window_are_one_group(tiny_config: dict[str, Any]) -> None:
    (plain,) = resolve(tiny_config).kv_specs("float16")
    assert (plain.name, plain.layers, plain.window, plain.dtype) == ("full", (0, 1), None, "float16")
    assert (plain.num_kv_heads, plain.head_dim) == (4, 16)


def test_each_window_is_a_group_in_the_order_of_its_first_layer(tiny_config: dict[str, Any]) -> None:
    def groups(**config: Any) -> list[tuple[str, tuple[int, ...], int | None]]:
        specs = resolve({**tiny_config, **config}).kv_specs("float32")
        return [(spec.name, spec.layers, spec.window) for spec in specs]

    assert groups(architectures=["MistralForCausalLM"], sliding_window=7) == [("window_7", (0, 1), 7)]
    qwen = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 7}
    mixed = [("full", (0, 1), None), ("window_7", (2, 3), 7)]
    assert groups(**qwen, max_window_layers=2, num_hidden_layers=4) == mixed
    alternating = ["sliding_attention", "full_attention"] * 2
    assert groups(**qwen, layer_types=alternating, num_hidden_layers=4) == [
        ("window_7", (0, 2), 7),
        ("full", (1, 3), None),
    ]


def test_each_layer_reads_the_inputs_of_its_group(tiny_config: dict[str, Any]) -> None:
    config = {**tiny_config, "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 7}
    model = resolve({**config, "num_hidden_layers": 3, "max_window_layers": 1})
    weights = {rule.name: torch.empty(rule.shape) for rule in model.weight_rules()}
    decoder: Any = model.build(lambda op, static: None, weights, "bfloat16", 16, 32, lambda table: table, None)
    for index, spec in enumerate(model.kv_specs("bfloat16")):
        read = [number for number, layer in enumerate(decoder.layers) if layer.attention.config.kv_group == index]
        assert tuple(read) == spec.layers


def test_costs(tiny_config: dict[str, Any]) -> None:
    spec = resolve(tiny_config).costs("float32")
    assert (spec.architecture, spec.num_layers) == ("LlamaForCausalLM", 2)
    assert (spec.vocab_size, spec.hidden_size, spec.max_position) == (128, 64, 64)
    assert spec.kv_specs[0].dtype == "float32"
    assert spec.bytes_per_token == 2 * resolve(tiny_config).costs("bfloat16").bytes_per_token
    assert spec.bytes_per_token - spec.weight_bytes == 2 * 2 * (4 * 16) * 4


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


def test_windows_in_rings_are_groups_that_come_last(tiny_config: dict[str, Any]) -> None:
    config = {**tiny_config, "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 7}
    alternating = ["sliding_attention", "full_attention"] * 2
    model = resolve({**config, "layer_types": alternating, "num_hidden_layers": 4})
    assert [spec.ring for spec in model.kv_specs("float32", num_drafts=3)] == [None, None]
    full, window = model.with_rings().kv_specs("float32", num_drafts=3)
    assert (full.name, full.layers, full.ring) == ("full", (1, 3), None)
    assert (window.name, window.layers, window.window, window.ring) == ("window_7", (0, 2), 7, 7 + 3 + 1)
    assert model.with_rings().costs("float32", num_drafts=3).kv_specs == (full, window)
    with pytest.raises(CheckpointError, match="nothing to keep in rings"):
        resolve(tiny_config).with_rings()

"""Qwen2, Qwen3 and Qwen3-MoE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from isoinfer.models.config import ModelConfig, MoeConfig
from isoinfer.models.family import Family
from isoinfer.models.hf_config import HfConfig, make_config, read_base, read_windows
from isoinfer.weights.loader import WeightRule

_QWEN3_HEAD_DIM = 128


def qwen2_from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """Biases on q, k and v only."""
    hf = HfConfig(config)
    base = read_base(hf)
    return make_config(base, qkv_bias=True, windows=_layer_windows(hf, base["num_layers"]))


def qwen3_from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """Norms on every q and k head."""
    hf = HfConfig(config)
    base = read_base(hf, head_dim=_QWEN3_HEAD_DIM)
    return make_config(base, **_qwen3(hf), windows=_layer_windows(hf, base["num_layers"]))


def qwen3_moe_from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """Sparse in every `decoder_sparse_step`-th layer that is not in `mlp_only_layers`."""
    hf = HfConfig(config)
    base = read_base(hf)
    step, dense = hf.integer("decoder_sparse_step", default=1), set(hf.get("mlp_only_layers", ()))
    layers = tuple(i for i in range(base["num_layers"]) if i not in dense and (i + 1) % step == 0)
    moe = MoeConfig(
        layers=layers,
        num_experts=hf.integer("num_experts", "num_local_experts"),
        top_k=hf.integer("num_experts_per_tok"),
        intermediate_size=hf.integer("moe_intermediate_size"),
        route_kind="softmax_topk",
        renormalize=hf.flag("norm_topk_prob", False),
    )
    windows = (_window(hf),) * base["num_layers"]
    return make_config(base, **_qwen3(hf), moe=moe if layers else None, windows=windows)


def _qwen3(hf: HfConfig) -> dict[str, bool]:
    bias = hf.flag("attention_bias", False)
    return {"qk_norm": True, "qkv_bias": bias, "o_bias": bias}


def _window(hf: HfConfig) -> int | None:
    return hf.integer("sliding_window") if hf.flag("use_sliding_window", False) else None


def _layer_windows(hf: HfConfig, num_layers: int) -> tuple[int | None, ...]:
    window = _window(hf)
    first = hf.get("max_window_layers", 28) if window is not None else num_layers
    return read_windows(hf, window, tuple(i >= first for i in range(num_layers)))


def qwen3_moe_rules(config: ModelConfig, moe: MoeConfig, layer: int) -> tuple[WeightRule, ...]:
    """On disk every expert has its own gate, up and down; here all are one tensor each for w13 and w2."""
    ours, theirs = f"layers.{layer}", f"model.layers.{layer}.mlp"
    num, wide, hidden = moe.num_experts, moe.intermediate_size, config.hidden_size
    experts = [f"{theirs}.experts.{e}" for e in range(num)]
    return (
        WeightRule(name=f"{ours}.router", sources=(f"{theirs}.gate.weight",), role="router", shape=(num, hidden)),
        WeightRule(
            name=f"{ours}.w13",
            sources=tuple(f"{expert}.{part}_proj.weight" for expert in experts for part in ("gate", "up")),
            role="experts",
            shape=(num, 2 * wide, hidden),
            transform=lambda parts: torch.cat(parts).view(num, 2 * wide, hidden),
        ),
        WeightRule(
            name=f"{ours}.w2",
            sources=tuple(f"{expert}.down_proj.weight" for expert in experts),
            role="experts",
            shape=(num, hidden, wide),
            transform=torch.stack,
        ),
    )


QWEN2 = Family(architecture="Qwen2ForCausalLM", from_hf=qwen2_from_hf)
QWEN3 = Family(architecture="Qwen3ForCausalLM", from_hf=qwen3_from_hf)
QWEN3_MOE = Family(architecture="Qwen3MoeForCausalLM", from_hf=qwen3_moe_from_hf, moe_rules=qwen3_moe_rules)

"""gpt-oss: attention sinks, alternating windows, biases everywhere, clipped SwiGLU experts.

MXFP4 expert weights arrive here already dequantised by the checkpoint, in the orientation of
transformers: gate_up `[E, H, 2I]` with gate and up columns interleaved, down `[E, I, H]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from isoinfer.models.config import ModelConfig, MoeConfig
from isoinfer.models.family import Family
from isoinfer.models.hf_config import HfConfig, make_config, read_base, read_windows
from isoinfer.weights.loader import WeightRule

_THETA = 150_000.0
_ALPHA, _LIMIT = 1.702, 7.0


def gpt_oss_from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """Even layers have the window where the config lists no `layer_types`. Rope must be given, as yarn or not."""
    hf = HfConfig(config)
    if not hf.get("rope_parameters", None) and not hf.get("rope_scaling", None):
        raise hf.error("'rope_scaling' (or 'rope_parameters') is missing")
    base = read_base(hf, default_theta=_THETA)
    bias, num_layers = hf.flag("attention_bias", True), base["num_layers"]
    windows = read_windows(hf, hf.integer("sliding_window"), tuple(i % 2 == 0 for i in range(num_layers)))
    moe = MoeConfig(
        layers=tuple(range(num_layers)),
        num_experts=hf.integer("num_local_experts", "num_experts"),
        top_k=hf.integer("num_experts_per_tok", "experts_per_token"),
        intermediate_size=base["intermediate_size"],
        route_kind="topk_softmax",
        activation="swiglu_clipped",
        alpha=hf.number("swiglu_alpha", _ALPHA),
        limit=hf.number("swiglu_limit", _LIMIT),
        bias=True,
    )
    return make_config(base, qkv_bias=bias, o_bias=bias, sinks=True, windows=windows, moe=moe)


def deinterleave_rows(x: torch.Tensor) -> torch.Tensor:
    """[E, 2I, ...] with rows gate0 up0 gate1 up1 ... to rows gate0 gate1 ... up0 up1 ...; a copy."""
    return x.reshape(x.shape[0], -1, 2, *x.shape[2:]).transpose(1, 2).flatten(1, 2)


def gpt_oss_moe_rules(config: ModelConfig, moe: MoeConfig, layer: int) -> tuple[WeightRule, ...]:
    """Transposes experts to [E, out, in] and undoes the interleaving of gate and up."""
    ours, theirs = f"layers.{layer}", f"model.layers.{layer}.mlp"
    num, wide, hidden = moe.num_experts, moe.intermediate_size, config.hidden_size
    return (
        WeightRule(name=f"{ours}.router", sources=(f"{theirs}.router.weight",), role="router", shape=(num, hidden)),
        WeightRule(name=f"{ours}.router_bias", sources=(f"{theirs}.router.bias",), role="vector", shape=(num,)),
        WeightRule(
            name=f"{ours}.w13",
            sources=(f"{theirs}.experts.gate_up_proj",),
            role="experts",
            shape=(num, 2 * wide, hidden),
            transform=lambda parts: deinterleave_rows(parts[0].transpose(1, 2)),
        ),
        WeightRule(
            name=f"{ours}.w13_bias",
            sources=(f"{theirs}.experts.gate_up_proj_bias",),
            role="vector",
            shape=(num, 2 * wide),
            transform=lambda parts: deinterleave_rows(parts[0]),
        ),
        WeightRule(
            name=f"{ours}.w2",
            sources=(f"{theirs}.experts.down_proj",),
            role="experts",
            shape=(num, hidden, wide),
            transform=lambda parts: parts[0].transpose(1, 2),
        ),
        WeightRule(
            name=f"{ours}.w2_bias",
            sources=(f"{theirs}.experts.down_proj_bias",),
            role="vector",
            shape=(num, hidden),
        ),
    )


GPT_OSS = Family(architecture="GptOssForCausalLM", from_hf=gpt_oss_from_hf, moe_rules=gpt_oss_moe_rules)

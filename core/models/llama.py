"""Llama and Mistral. Llama stands for all models that are written as it (SmolLM2, TinyLlama, Llama 2 and 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isoinfer.models.config import ModelConfig
from isoinfer.models.family import Family
from isoinfer.models.hf_config import HfConfig, make_config, read_base


def llama_from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """Full attention; optional attention and MLP biases."""
    hf = HfConfig(config)
    bias = hf.flag("attention_bias", False)
    return make_config(read_base(hf), qkv_bias=bias, o_bias=bias, mlp_bias=hf.flag("mlp_bias", False))


def mistral_from_hf(config: Mapping[str, Any]) -> ModelConfig:
    """One window over all layers, or none where `sliding_window` is null."""
    hf = HfConfig(config)
    base = read_base(hf)
    window = hf.integer("sliding_window") if hf.get("sliding_window", None) is not None else None
    return make_config(base, windows=(window,) * base["num_layers"])


LLAMA = Family(architecture="LlamaForCausalLM", from_hf=llama_from_hf)
MISTRAL = Family(architecture="MistralForCausalLM", from_hf=mistral_from_hf)

"""What one token costs, from the config alone: matrix work and bytes moved. Not a measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from isoinfer.models.config import ModelConfig


def active_parameters(config: ModelConfig) -> int:
    """Matrix parameters that one token multiplies with: chosen experts only, the embedding look-up not counted."""
    layers = sum(_layer_parameters(config, layer) for layer in range(config.num_layers))
    return layers + config.vocab_size * config.hidden_size


def flops_per_token(config: ModelConfig) -> int:
    """Two per active parameter. Attention scores are left out: they depend on the context's length."""
    return 2 * active_parameters(config)


def weight_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes of weights that one lone token reads: each active matrix once, unquantised, and its embedding row."""
    return (active_parameters(config) + config.hidden_size) * _itemsize(dtype)


def bytes_per_token(config: ModelConfig, dtype: str) -> int:
    """Bytes one lone token moves: the weights it reads, and its K and V written."""
    return weight_bytes(config, dtype) + 2 * config.num_layers * config.kv_size * _itemsize(dtype)


def expert_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes of all routed experts, unquantised, of which a token reads `top_k` in `num_experts`."""
    if config.moe is None:
        return 0
    one = 3 * config.hidden_size * config.moe.intermediate_size
    return len(config.moe.layers) * config.moe.num_experts * one * _itemsize(dtype)


def expert_share(config: ModelConfig) -> float:
    """The part of the routed experts that one token reads."""
    return 0.0 if config.moe is None else config.moe.top_k / config.moe.num_experts


def _itemsize(dtype: str) -> int:
    size: int = getattr(torch, dtype).itemsize
    return size


def _layer_parameters(config: ModelConfig, layer: int) -> int:
    attention = config.hidden_size * (2 * config.q_size + 2 * config.kv_size)
    moe = config.moe_at(layer)
    if moe is None:
        return attention + 3 * config.hidden_size * config.intermediate_size
    return attention + config.hidden_size * (moe.num_experts + 3 * moe.top_k * moe.intermediate_size)

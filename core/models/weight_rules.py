"""Which tensors of a checkpoint make which weights of the decoder: the names that all families share.

Merged weights: qkv = q | k | v rows, gate_up = gate | up rows. A rule without a transform concatenates
its sources along dim 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoinfer.weights.loader import WeightRule

if TYPE_CHECKING:
    from isoinfer.models.config import ModelConfig
    from isoinfer.models.family import Family


def decoder_rules(family: Family, config: ModelConfig) -> tuple[WeightRule, ...]:
    """All rules of a model, in the order in which a forward pass needs the weights."""
    vocab = (config.vocab_size, config.hidden_size)
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    rules = [WeightRule(name="embed", sources=("model.embed_tokens.weight",), role="embedding", shape=vocab)]
    for layer in range(config.num_layers):
        rules += _attention_rules(config, layer)
        rules += _feed_forward_rules(family, config, layer)
    rules.append(_vector("norm", "model.norm.weight", config.hidden_size))
    rules.append(WeightRule(name="lm_head", sources=(head,), role="head", shape=vocab))
    return tuple(rules)


def ignored_tensors(config: ModelConfig) -> tuple[str, ...]:
    """Glob patterns of tensors that checkpoints may carry and this decoder does not need: a copy of a tied head."""
    return ("lm_head.weight",) if config.tie_word_embeddings else ()


def _attention_rules(config: ModelConfig, layer: int) -> list[WeightRule]:
    ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
    attn, hidden = f"{theirs}.self_attn", config.hidden_size
    qkv = tuple(f"{attn}.{part}_proj" for part in "qkv")
    rules = [_vector(f"{ours}.input_norm", f"{theirs}.input_layernorm.weight", hidden)]
    rules += _linear(f"{ours}.qkv", qkv, (config.q_size + 2 * config.kv_size, hidden), config.qkv_bias)
    if config.qk_norm:
        rules += [_vector(f"{ours}.{part}_norm", f"{attn}.{part}_norm.weight", config.head_dim) for part in "qk"]
    if config.sinks:
        rules.append(_vector(f"{ours}.sinks", f"{attn}.sinks", config.num_heads))
    rules += _linear(f"{ours}.o", (f"{attn}.o_proj",), (hidden, config.q_size), config.o_bias)
    return rules


def _feed_forward_rules(family: Family, config: ModelConfig, layer: int) -> list[WeightRule]:
    ours, theirs, hidden = f"layers.{layer}", f"model.layers.{layer}", config.hidden_size
    rules = [_vector(f"{ours}.post_norm", f"{theirs}.post_attention_layernorm.weight", hidden)]
    moe = config.moe_at(layer)
    if moe is not None:
        assert family.moe_rules is not None, family.architecture
        return [*rules, *family.moe_rules(config, moe, layer)]
    wide, gate_up = config.intermediate_size, (f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj")
    rules += _linear(f"{ours}.gate_up", gate_up, (2 * wide, hidden), config.mlp_bias)
    rules += _linear(f"{ours}.down", (f"{theirs}.mlp.down_proj",), (hidden, wide), config.mlp_bias)
    return rules


def _linear(name: str, modules: tuple[str, ...], shape: tuple[int, int], bias: bool) -> list[WeightRule]:
    weights = tuple(f"{module}.weight" for module in modules)
    rules = [WeightRule(name=name, sources=weights, role="linear", shape=shape)]
    if bias:
        biases = tuple(f"{module}.bias" for module in modules)
        rules.append(WeightRule(name=f"{name}_bias", sources=biases, role="vector", shape=(shape[0],)))
    return rules


def _vector(name: str, source: str, size: int) -> WeightRule:
    return WeightRule(name=name, sources=(source,), role="vector", shape=(size,))

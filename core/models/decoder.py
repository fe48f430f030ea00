"""The decoder that runs: layers put together once, then only calls of bound ops.

`build_decoder` reads the config; the `Decoder` it returns knows nothing but its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from isoinfer.backends.ops.moe import MoeSpec, RouteSpec
from isoinfer.layers.attention import Attention, AttentionConfig
from isoinfer.layers.decoder import DecoderLayer
from isoinfer.layers.embedding import Embedding
from isoinfer.layers.linear import Linear
from isoinfer.layers.mlp import Mlp
from isoinfer.layers.moe import Moe
from isoinfer.layers.norm import AddRmsNorm, RmsNorm

if TYPE_CHECKING:
    import torch

    from isoinfer.backends.interface import KVCache
    from isoinfer.layers.batch import ForwardBatch
    from isoinfer.layers.parts import Parts
    from isoinfer.models.config import ModelConfig, MoeConfig


class Decoder:
    """Token ids to hidden states to logits. Holds weights and bound functions, no state between calls."""

    def __init__(
        self, embed: Embedding, first_norm: RmsNorm, layers: tuple[DecoderLayer, ...], lm_head: Linear
    ) -> None:
        self.embed, self.first_norm, self.layers, self.lm_head = embed, first_norm, layers, lm_head

    def hidden(self, batch: ForwardBatch, kv: KVCache) -> torch.Tensor:
        """Final normed hidden_TH of every token of the batch; writes their K and V into `kv`."""
        residual_TH = self.embed(batch.token_ids_T)
        normed_TH = self.first_norm(residual_TH)
        for index, layer in enumerate(self.layers):
            normed_TH = layer(normed_TH, residual_TH, batch, kv.layer(index))
        return normed_TH

    def logits(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        """logits_RV in float32 of any rows of `hidden`'s result."""
        return self.lm_head(hidden_RH)


def build_decoder(parts: Parts, config: ModelConfig, cos_sin_PR: torch.Tensor) -> Decoder:
    """Bind every op of the model. `cos_sin_PR` is the rope table, on the device."""
    first, hidden = "layers.0.input_norm", config.hidden_size
    return Decoder(
        embed=Embedding(parts, "embed", vocab_size=config.vocab_size, hidden_size=hidden),
        first_norm=RmsNorm(parts, first, hidden_size=hidden, eps=config.rms_norm_eps),
        layers=tuple(_layer(parts, config, layer, cos_sin_PR) for layer in range(config.num_layers)),
        lm_head=Linear(
            parts, "lm_head", in_features=hidden, out_features=config.vocab_size, out_dtype="float32", role="head"
        ),
    )


def _layer(parts: Parts, config: ModelConfig, layer: int, cos_sin_PR: torch.Tensor) -> DecoderLayer:
    prefix, last = f"layers.{layer}", layer == config.num_layers - 1
    hidden, eps = config.hidden_size, config.rms_norm_eps
    return DecoderLayer(
        attention=Attention(parts, prefix, _attention(config, layer), cos_sin_PR),
        post_norm=AddRmsNorm(parts, f"{prefix}.post_norm", hidden_size=hidden, eps=eps),
        feed_forward=_feed_forward(parts, config, layer),
        next_norm=AddRmsNorm(parts, "norm" if last else f"layers.{layer + 1}.input_norm", hidden_size=hidden, eps=eps),
    )


def _attention(config: ModelConfig, layer: int) -> AttentionConfig:
    window = config.windows[layer]
    return AttentionConfig(
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rotary_dim=config.rope.rotary_dim,
        kv_group=config.kv_windows.index(window),
        window=window,
        qkv_bias=config.qkv_bias,
        o_bias=config.o_bias,
        qk_norm=config.qk_norm,
        norm_eps=config.rms_norm_eps,
        sinks=config.sinks,
        ring=window in config.ring_windows,
    )


def _feed_forward(parts: Parts, config: ModelConfig, layer: int) -> Callable[[torch.Tensor], torch.Tensor]:
    prefix, moe = f"layers.{layer}", config.moe_at(layer)
    if moe is not None:
        return Moe(parts, prefix, route=_route(moe), experts=_experts(parts, config, moe))
    hidden, wide = config.hidden_size, config.intermediate_size
    return Mlp(parts, prefix, hidden_size=hidden, intermediate_size=wide, bias=config.mlp_bias)


def _route(moe: MoeConfig) -> RouteSpec:
    return RouteSpec(
        num_experts=moe.num_experts,
        top_k=moe.top_k,
        kind=moe.route_kind,
        renormalize=moe.renormalize,
        dtype="float32",
    )


def _experts(parts: Parts, config: ModelConfig, moe: MoeConfig) -> MoeSpec:
    return MoeSpec(
        num_experts=moe.num_experts,
        top_k=moe.top_k,
        hidden_size=config.hidden_size,
        intermediate_size=moe.intermediate_size,
        activation=moe.activation,
        alpha=moe.alpha,
        limit=moe.limit,
        bias=moe.bias,
        dtype=parts.dtype,
    )

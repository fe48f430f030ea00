"""Public models by name, as numbers: for planning without a checkpoint. Nothing here can be run for real.

Dense models are their published config.json, counted like any checkpoint's. The DeepSeek models are published
sizes, since no family of ours computes them yet. A KV group cannot say what their KV is (latent, compressed,
chosen by an index), so it has one paged group with the bytes of a token, and `maybe_kv_read` says what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from isoinfer.backends.interface import KVSpec, ModelSpec
from isoinfer.models.registry import resolve

BYTES_FP8, BYTES_FP4 = 1.0, 0.5 + 1 / 32
"""Of a weight; four-bit ones share an eight-bit scale among 32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """`bits`: width of its operands. `kv_bytes_per_token`: exactly; the spec's group may be rounded up.
    `state_bytes`: what a running request keeps whatever its length (window rings, compressor tails)."""

    spec: ModelSpec
    bits: int
    kv_bytes_per_token: float
    state_bytes: int = 0

    @property
    def resident_bytes(self) -> float:
        """Weights that must be in the device's memory."""
        return self.spec.weight_bytes + self.spec.expert_bytes * (1 - self.spec.expert_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Routed experts: `top_k` of `num` in each of `layers` layers, `size` weights each."""

    layers: int
    num: int
    top_k: int
    size: int
    bytes_per_weight: float

    @property
    def num_bytes(self) -> int:
        """Of all of them."""
        return round(self.layers * self.num * self.size * self.bytes_per_weight)


def _dense(**config: Any) -> NamedModel:
    spec = resolve(config).costs("bfloat16")
    kv_bytes = sum(2 * len(group.layers) * group.num_kv_heads * group.head_dim * 2 for group in spec.kv_specs)
    return NamedModel(spec=spec, bits=16, kv_bytes_per_token=kv_bytes)


def _smollm2_135m() -> NamedModel:
    return _dense(
        architectures=["LlamaForCausalLM"],
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_theta=100000,
        hidden_act="silu",
        tie_word_embeddings=True,
    )


def _llama_31_8b() -> NamedModel:
    return _dense(
        architectures=["LlamaForCausalLM"],
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_theta=500000,
        hidden_act="silu",
        tie_word_embeddings=False,
    )


def _qwen3_8b() -> NamedModel:
    return _dense(
        architectures=["Qwen3ForCausalLM"],
        vocab_size=151936,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        rms_norm_eps=1e-6,
        rope_theta=1000000,
        hidden_act="silu",
        tie_word_embeddings=False,
        attention_bias=False,
    )


def _deepseek_v3() -> NamedModel:
    """671e9 weights, 37e9 for a token; three dense layers; latent KV of 576 bfloat16 in each of 61 layers."""
    experts = Experts(layers=58, num=256, top_k=8, size=3 * 7168 * 2048, bytes_per_weight=BYTES_FP8)
    return NamedModel(
        spec=_sparse(
            "DeepseekV3ForCausalLM",
            experts,
            other_bytes=671_000_000_000 - experts.num_bytes - 129280 * 7168,
            active=37_000_000_000,
            kv=KVSpec(name="latent", layers=tuple(range(61)), num_kv_heads=1, head_dim=288, dtype="bfloat16"),
            num_layers=61,
            hidden_size=7168,
            max_position=131072,
        ),
        bits=8,
        kv_bytes_per_token=61 * 576 * 2,
    )


def _deepseek_v4_flash() -> NamedModel:
    """284e9 weights, 13e9 for a token; 2 window layers, 21 compressed by 4 with an index, 20 compressed by 128.

    A record is 584 bytes, an index key 68. A query reads windows of 128 and 512 chosen records, and of every
    token before it a quarter of an index key in 21 layers and a 128th of a record in 20.
    """
    experts = Experts(layers=43, num=256, top_k=6, size=3 * 4096 * 2048, bytes_per_weight=BYTES_FP4)
    routed = experts.layers * experts.num * experts.size
    kv_bytes = 21 * (584 + 68) / 4 + 20 * 584 / 128
    return NamedModel(
        spec=_sparse(
            "DeepseekV4ForCausalLM",
            experts,
            other_bytes=284_000_000_000 - routed - 129280 * 4096,
            active=13_000_000_000,
            kv=KVSpec(name="compressed", layers=(0,), num_kv_heads=1, head_dim=1758, dtype="float8_e4m3fn"),
            num_layers=43,
            hidden_size=4096,
            max_position=1048576,
            maybe_kv_read=(43 * 128 * 584 + 21 * 512 * 584, round(21 * 68 / 4 + 20 * 584 / 128)),
        ),
        bits=8,
        kv_bytes_per_token=kv_bytes,
        state_bytes=43 * 128 * 584,
    )


def _deepseek_v41_flash() -> NamedModel:
    """552e9 weights without the 196e9 of Engram (which stay in the host's memory); 15.6e9 for a decoded token.

    Global KV comes from three layers compressed by 2 and one by 1: 288 bytes a record, 68 an index key. A query
    reads 512 records in 38 layers, windows of 128 in 40, and index keys: this slope is that of contexts up to
    16384 tokens; beyond, it is smaller. Prompts are counted as decoded tokens, twice what the model needs.
    """
    experts = Experts(layers=40, num=384, top_k=6, size=3 * 5120 * 2304, bytes_per_weight=BYTES_FP4)
    return NamedModel(
        spec=_sparse(
            "DeepseekV41ForCausalLM",
            experts,
            other_bytes=9_200_000_000,
            active=15_630_000_000,
            kv=KVSpec(name="global", layers=(2,), num_kv_heads=1, head_dim=445, dtype="float8_e4m3fn"),
            num_layers=40,
            hidden_size=5120,
            max_position=1048576,
            maybe_kv_read=(38 * 512 * 288 + 40 * 128 * 528, 3 * 68 // 2 + 68 + 4 * 68),
        ),
        bits=8,
        kv_bytes_per_token=3 * (288 + 68) / 2 + (288 + 68),
        state_bytes=134 * 528 * 40 + 3 * 7 * 2 * 512 * 4,
    )


def _sparse(
    architecture: str, experts: Experts, *, other_bytes: int, active: int, kv: KVSpec, **sizes: Any
) -> ModelSpec:
    """`other_bytes`: all weights that every token reads. `active`: weights that a token multiplies with."""
    share = experts.top_k / experts.num
    weight_bytes = round(other_bytes + experts.num_bytes * share)
    written = 2 * len(kv.layers) * kv.num_kv_heads * kv.head_dim * getattr(torch, kv.dtype).itemsize
    return ModelSpec(
        architecture=architecture,
        kv_specs=(kv,),
        flops_per_token=2 * active,
        bytes_per_token=weight_bytes + written,
        weight_bytes=weight_bytes,
        vocab_size=129280,
        expert_bytes=experts.num_bytes,
        expert_share=share,
        **sizes,
    )


NAMED_MODELS: Mapping[str, Callable[[], NamedModel]] = MappingProxyType(
    {
        "smollm2-135m": _smollm2_135m,
        "llama-3.1-8b": _llama_31_8b,
        "qwen3-8b": _qwen3_8b,
        "deepseek-v3": _deepseek_v3,
        "deepseek-v4-flash": _deepseek_v4_flash,
        "deepseek-v4.1-flash": _deepseek_v41_flash,
    }
)

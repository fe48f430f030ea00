"""A random Llama or Qwen3 on disk, made on the spot: nothing to download, the same everywhere for the same seed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True, kw_only=True)
class Size:
    """Shape of a model."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


TINY = Size(vocab=256, hidden=128, intermediate=192, layers=2, heads=4, kv_heads=2, head_dim=32)
MEDIUM = Size(vocab=32_000, hidden=2048, intermediate=8192, layers=16, heads=32, kv_heads=8, head_dim=64)


def write_model(folder: Path, family: str, size: Size, dtype: torch.dtype) -> None:
    """Config, weights and a tokenizer of words w0, w1, ..."""
    config = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": size.vocab,
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_weights(family, size, dtype), folder / "model.safetensors")
    words = {f"w{i}": i for i in range(size.vocab)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))


def _weights(family: str, size: Size, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    gen = torch.Generator().manual_seed(5)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=gen) * 1.5 / columns**0.5).to(dtype)

    def vector(length: int) -> torch.Tensor:
        return (1 + 0.1 * torch.randn(length, generator=gen)).to(dtype)

    q, kv = size.heads * size.head_dim, size.kv_heads * size.head_dim
    weights = {
        "model.embed_tokens.weight": torch.randn(size.vocab, size.hidden, generator=gen).to(dtype),
        "model.norm.weight": vector(size.hidden),
        "lm_head.weight": matrix(size.vocab, size.hidden),
    }
    for layer in range(size.layers):
        prefix = f"model.layers.{layer}"
        shapes = {
            "self_attn.q_proj": (q, size.hidden),
            "self_attn.k_proj": (kv, size.hidden),
            "self_attn.v_proj": (kv, size.hidden),
            "self_attn.o_proj": (size.hidden, q),
            "mlp.gate_proj": (size.intermediate, size.hidden),
            "mlp.up_proj": (size.intermediate, size.hidden),
            "mlp.down_proj": (size.hidden, size.intermediate),
        }
        weights |= {f"{prefix}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}.{name}.weight"] = vector(size.hidden)
        if family == "qwen3":
            for name in ("q_norm", "k_norm"):
                weights[f"{prefix}.self_attn.{name}.weight"] = vector(size.head_dim)
    return weights

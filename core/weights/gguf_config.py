"""GGUF metadata to the dict that Hugging Face's config.json would hold."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from isoinfer.errors import CheckpointError
from isoinfer.weights.gguf_header import GGUFHeader
from isoinfer.weights.gguf_rope import rope_scaling

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
    "gpt-oss": ("GptOssForCausalLM", "gpt_oss"),
}
GPT_OSS_SWIGLU_LIMIT = 7.0
DEFAULT_THETA = 10000.0


def gguf_arch(header: GGUFHeader) -> str:
    """The file's architecture word. CheckpointError if absent or not among ARCHITECTURES."""
    arch = header.metadata.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise CheckpointError(
            f"The GGUF file has the architecture {arch!r}; supported are {', '.join(ARCHITECTURES)}. Use another model."
        )
    return str(arch)


def gguf_config(header: GGUFHeader) -> dict[str, Any]:
    """HF-style config of a GGUF file. CheckpointError if a required key is absent."""
    arch = gguf_arch(header)
    metadata = _Metadata(header.metadata, arch)
    name, model_type = ARCHITECTURES[arch]
    config = {"architectures": [name], "model_type": model_type, **_common(metadata, header)}
    if arch == "llama":
        config |= _llama(metadata, header)
    elif arch == "qwen2":
        config |= {"use_sliding_window": False}
    elif arch == "qwen3moe":
        config |= _qwen3_moe(metadata)
    elif arch == "gpt-oss":
        config |= _gpt_oss(metadata)
    return config


class _Metadata:
    """Keys of one architecture. Floats lose the noise of their float32 storage (1e-05, not 9.99999e-06)."""

    def __init__(self, values: Mapping[str, Any], arch: str) -> None:
        self._values = values
        self.arch = arch

    def get(self, key: str, default: Any = None) -> Any:
        value = self._values.get(f"{self.arch}.{key}", default)
        return _shortest_float32(value) if isinstance(value, float) else value

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise CheckpointError(f"The GGUF file lacks the key {self.arch}.{key}. Convert or download it again.")
        return value

    def need_int(self, key: str) -> int:
        """A number that is the same for all layers; some files repeat it for each."""
        value = self.need(key)
        if not isinstance(value, list):
            return int(value)
        if len(set(value)) != 1:
            raise CheckpointError(f"The GGUF file has layers with different {self.arch}.{key}, which is not supported.")
        return int(value[0])

    def rope_scaling(self) -> dict[str, Any] | None:
        scaling = rope_scaling(self._values, self.arch)
        return scaling and {k: _shortest_float32(v) if isinstance(v, float) else v for k, v in scaling.items()}


def _common(metadata: _Metadata, header: GGUFHeader) -> dict[str, Any]:
    num_heads = metadata.need_int("attention.head_count")
    hidden_size = metadata.need_int("embedding_length")
    tokenizer = header.metadata
    return {
        "hidden_size": hidden_size,
        "num_hidden_layers": metadata.need_int("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": metadata.need_int("attention.head_count_kv")
        if metadata.get("attention.head_count_kv")
        else num_heads,
        "head_dim": _head_dim(metadata, hidden_size // num_heads),
        "intermediate_size": metadata.need_int("feed_forward_length"),
        "rms_norm_eps": metadata.need("attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.get("rope.freq_base", DEFAULT_THETA),
        "rope_scaling": metadata.rope_scaling(),
        "max_position_embeddings": metadata.need_int("context_length"),
        "vocab_size": _vocab_size(header),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "hidden_act": "silu",
        "bos_token_id": tokenizer.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": tokenizer.get("tokenizer.ggml.eos_token_id"),
    }


def _head_dim(metadata: _Metadata, default: int) -> int:
    return int(metadata.get("attention.key_length") or metadata.get("rope.dimension_count") or default)


def _vocab_size(header: GGUFHeader) -> int:
    if "token_embd.weight" not in header.tensors:
        raise CheckpointError("The GGUF file has no token_embd.weight: it holds no whole language model.")
    return header.tensors["token_embd.weight"].shape[0]


def _llama(metadata: _Metadata, header: GGUFHeader) -> dict[str, Any]:
    if metadata.get("expert_count"):
        raise CheckpointError(
            "The GGUF file is a mixture of experts of the llama architecture, which is not supported."
        )
    config: dict[str, Any] = {"mlp_bias": "blk.0.ffn_gate.bias" in header.tensors}
    window = metadata.get("attention.sliding_window")
    if window:
        config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": int(window)}
    return config


def _qwen3_moe(metadata: _Metadata) -> dict[str, Any]:
    return {
        "num_experts": metadata.need_int("expert_count"),
        "num_experts_per_tok": metadata.need_int("expert_used_count"),
        "moe_intermediate_size": metadata.need_int("expert_feed_forward_length"),
        "norm_topk_prob": True,  # every published Qwen3-MoE has it; the file does not store it
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _gpt_oss(metadata: _Metadata) -> dict[str, Any]:
    num_layers = metadata.need_int("block_count")
    kinds = ("sliding_attention", "full_attention")
    return {
        "num_local_experts": metadata.need_int("expert_count"),
        "num_experts_per_tok": metadata.need_int("expert_used_count"),
        "intermediate_size": metadata.need_int("expert_feed_forward_length"),
        "sliding_window": metadata.need_int("attention.sliding_window"),
        "layer_types": [kinds[layer % 2] for layer in range(num_layers)],
        "swiglu_limit": GPT_OSS_SWIGLU_LIMIT,
    }


def _shortest_float32(value: float) -> float:
    """The shortest decimal that is the same float32: what the model's author wrote before it was stored."""
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == struct.pack("<f", value):
            return short
    return value

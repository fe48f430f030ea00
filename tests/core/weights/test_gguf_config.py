from __future__ import annotations

from typing import Any

import pytest
from gguf.constants import GGMLQuantizationType

from isoinfer.errors import CheckpointError
from isoinfer.weights.gguf_config import gguf_config
from isoinfer.weights.gguf_header import GGUFHeader, GGUFTensor


def _header(arch: str, extra: dict[str, Any] | None = None, tensors: tuple[str, ...] = ()) -> GGUFHeader:
    keys = {
        "block_count": 2,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "context_length": 128,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
        "rope.freq_base": 1000000.0,
        **(extra or {}),
    }
    metadata = {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in keys.items()}}
    tensor = GGUFTensor(shape=(96, 32), kind=GGMLQuantizationType.F32, offset=0, nbytes=0)
    return GGUFHeader(metadata=metadata, tensors=dict.fromkeys(("token_embd.weight", *tensors), tensor))


def test_llama() -> None:
    config = gguf_config(_header("llama", {"rope.dimension_count": 8}))
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "max_position_embeddings": 128,
        "vocab_size": 96,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
    }
    assert {key: config[key] for key in expected} == expected


def test_what_the_tensors_tell() -> None:
    config = gguf_config(_header("llama", tensors=("output.weight", "blk.0.attn_q.bias")))
    assert config["tie_word_embeddings"] is False
    assert config["attention_bias"] is True


def test_llama_with_a_window_is_mistral() -> None:
    config = gguf_config(_header("llama", {"attention.sliding_window": 16}))
    assert (config["architectures"], config["sliding_window"]) == (["MistralForCausalLM"], 16)


def test_key_length_is_the_head_dim() -> None:
    assert gguf_config(_header("qwen3", {"attention.key_length": 128}))["head_dim"] == 128
    assert gguf_config(_header("qwen2"))["head_dim"] == 8


def test_absent_kv_heads_mean_as_many_as_heads() -> None:
    header = _header("qwen2")
    del header.metadata["qwen2.attention.head_count_kv"]
    assert gguf_config(header)["num_key_value_heads"] == 4


def test_a_number_for_each_layer() -> None:
    assert gguf_config(_header("qwen3", {"feed_forward_length": [48, 48]}))["intermediate_size"] == 48
    with pytest.raises(CheckpointError, match=r"different qwen3\.feed_forward_length"):
        gguf_config(_header("qwen3", {"feed_forward_length": [48, 64]}))


def test_unsupported_architecture_lists_the_supported() -> None:
    with pytest.raises(CheckpointError, match="'gemma3'; supported are llama, qwen2, qwen3, qwen3moe, gpt-oss"):
        gguf_config(_header("gemma3"))


def test_missing_key_is_named() -> None:
    header = _header("llama")
    del header.metadata["llama.block_count"]
    with pytest.raises(CheckpointError, match=r"lacks the key llama\.block_count"):
        gguf_config(header)


def test_experts_of_arch_llama_are_refused() -> None:
    with pytest.raises(CheckpointError, match="mixture of experts"):
        gguf_config(_header("llama", {"expert_count": 8}))

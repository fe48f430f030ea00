"""Small checkpoints, written by transformers and by the gguf package, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

WriteGGUF = Callable[..., Path]
_COMMON = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True}
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"attention_bias": True, "tie_word_embeddings": False}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3moe": ("Qwen3Moe", {"head_dim": 16, **_MOE}),
    "gpt-oss": ("GptOss", {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}),
}


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], Any]:
    """A random model of a GGUF architecture word, in float32, all its tensors non-trivial."""
    models: dict[str, Any] = {}

    def make(arch: str) -> Any:
        if arch not in models:
            name, extra = _KINDS[arch]
            torch.manual_seed(0)
            config = getattr(transformers, f"{name}Config")(**{**_COMMON, **extra})
            model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
            for parameter in model.parameters():
                parameter.data.normal_(0.5, 0.2) if parameter.ndim == 1 else parameter.data.normal_(0, 0.2)
            models[arch] = model
        return models[arch]

    return make


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGGUF:
    """Write a GGUF file from metadata and arrays; an array may be a pair (raw bytes, quantisation type)."""

    def write(arch: str, metadata: Mapping[str, Any], tensors: Mapping[str, Any], name: str = "model.gguf") -> Path:
        path = tmp_path / name
        writer = gguf.GGUFWriter(path, arch)
        for key, value in metadata.items():
            _add(writer, key, value)
        for tensor_name, value in tensors.items():
            if isinstance(value, tuple):
                writer.add_tensor(tensor_name, value[0], raw_dtype=value[1])
            else:
                writer.add_tensor(tensor_name, np.ascontiguousarray(value))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture
def hf_folder(tmp_path: Path) -> Path:
    """A folder with a config, one tensor file and a generation config."""
    folder = tmp_path / "tiny-model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    tensors = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.weight": torch.ones(4, dtype=torch.bfloat16)}
    save_file(tensors, folder / "model.safetensors")
    return folder


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf.constants import MODEL_ARCH, GGMLQuantizationType
from safetensors.torch import save_file

from isoinfer.errors import CheckpointError
from isoinfer.weights.gguf_file import GGUFCheckpoint
from isoinfer.weights.gguf_names import ROPE_FREQS
from isoinfer.weights.gguf_rope import _llama3_factors

KINDS = {
    "llama": MODEL_ARCH.LLAMA,
    "qwen2": MODEL_ARCH.QWEN2,
    "qwen3": MODEL_ARCH.QWEN3,
    "qwen3moe": MODEL_ARCH.QWEN3MOE,
    "gpt-oss": MODEL_ARCH.GPT_OSS,
}
QUANTISED = (
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
)


def _metadata(arch: str, config: Any) -> dict[str, Any]:
    keys = {
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "context_length": config.max_position_embeddings,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }
    if arch in ("qwen3", "qwen3moe", "gpt-oss"):
        keys["attention.key_length"] = config.head_dim
    if arch in ("qwen3moe", "gpt-oss"):
        keys |= {"expert_count": config.num_local_experts, "expert_used_count": config.num_experts_per_tok}
        keys["expert_feed_forward_length"] = getattr(config, "moe_intermediate_size", config.intermediate_size)
    if arch == "gpt-oss":
        rope = config.rope_parameters
        keys |= {
            "attention.sliding_window": config.sliding_window,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        }
    return {f"{arch}.{key}": value for key, value in keys.items()}


def _to_gguf(arch: str, model: Any) -> dict[str, np.ndarray[Any, Any]]:
    """A model's tensors as a converter for GGUF writes them; the names are the gguf package's own."""
    config, names = model.config, gguf.get_tensor_name_map(KINDS[arch], model.config.num_hidden_layers)
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for name, value in model.state_dict().items():
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        array = value.numpy()
        if arch == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            array = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        if ".experts." in name:
            tensors |= _experts(arch, name, array)
        elif name.endswith(".sinks"):
            tensors[names.get_name(name) + ".weight"] = array
        else:
            gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert gguf_name is not None, name
            tensors[gguf_name] = array
    return tensors


def _experts(arch: str, name: str, array: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    prefix = f"blk.{name.split('.')[2]}."
    suffix = "bias" if name.endswith("_bias") else "weight"
    if arch == "gpt-oss" and suffix == "weight":
        array = array.swapaxes(1, 2)
    if "down_proj" in name:
        return {f"{prefix}ffn_down_exps.{suffix}": array}
    gate, up = (array[:, ::2], array[:, 1::2]) if arch == "gpt-oss" else np.split(array, 2, axis=1)
    return {f"{prefix}ffn_gate_exps.{suffix}": gate, f"{prefix}ffn_up_exps.{suffix}": up}


def _rebuild(checkpoint: GGUFCheckpoint, folder: Path) -> Any:
    """A transformers model of nothing but what the checkpoint presents, through a Hugging Face folder."""
    save_file({name: checkpoint.load(name).contiguous() for name in checkpoint.tensors}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(dict(checkpoint.config)))
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("arch", KINDS)
def test_model_through_gguf_gives_the_same_logits(
    arch: str, tiny_model: Callable[[str], Any], write_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    model = tiny_model(arch)
    checkpoint = GGUFCheckpoint(write_gguf(arch, _metadata(arch, model.config), _to_gguf(arch, model)))
    assert all(tuple(checkpoint.load(name).shape) == info.shape for name, info in checkpoint.tensors.items())
    rebuilt = _rebuild(checkpoint, tmp_path)
    assert type(rebuilt) is type(model)
    state = rebuilt.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(state[name], tensor), name
    ids = torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(rebuilt(ids).logits, model(ids).logits)


def _random_rows(kind: GGMLQuantizationType) -> np.ndarray[Any, Any]:
    """Two experts of three rows; small bytes keep the half floats inside blocks finite."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    width = -(-512 // block) * size
    return np.random.default_rng(0).integers(0, 0x7B, (2, 3, width), dtype=np.uint8)


def _one_tensor(write_gguf: Callable[..., Path], tensors: Mapping[str, Any], arch: str = "qwen3moe") -> GGUFCheckpoint:
    keys = dict.fromkeys(("block_count", "embedding_length", "feed_forward_length", "context_length"), 1)
    keys |= {"attention.head_count": 1, "expert_used_count": 1, "expert_feed_forward_length": 1}
    keys |= {"expert_count": 2} if arch == "qwen3moe" else {}
    metadata = {f"{arch}.{key}": value for key, value in keys.items()}
    metadata[f"{arch}.attention.layer_norm_rms_epsilon"] = 1e-6
    embedding = {"token_embd.weight": np.zeros((1, 1), np.float32)}
    return GGUFCheckpoint(write_gguf(arch, metadata, {**embedding, **tensors}))


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_types_whole_and_by_expert(name: str, write_gguf: Callable[..., Path]) -> None:
    kind = GGMLQuantizationType[name]
    rows = _random_rows(kind)
    expected = torch.from_numpy(gguf.dequantize(rows, kind))
    tensors = {"blk.0.ffn_up_exps.weight": (rows, kind), "output.weight": (rows[0], kind)}
    checkpoint = _one_tensor(write_gguf, tensors)
    assert checkpoint.tensors["lm_head.weight"].stored == name
    assert torch.equal(checkpoint.load("lm_head.weight"), expected[0])
    second = "model.layers.0.mlp.experts.1.up_proj.weight"
    assert checkpoint.tensors[second].shape == (3, 512)
    assert torch.equal(checkpoint.load(second), expected[1])
    assert expected.isfinite().all()
    assert expected.unique().numel() > 4


def test_q4_1_by_hand(write_gguf: Callable[..., Path]) -> None:
    scale, low = np.float16(0.5), np.float16(-1.0)
    nibbles = np.arange(16, dtype=np.uint8) | (np.arange(15, -1, -1, dtype=np.uint8) << 4)
    row = np.concatenate([np.array([scale, low]).view(np.uint8), nibbles])[None]
    checkpoint = _one_tensor(write_gguf, {"output.weight": (row, GGMLQuantizationType.Q4_1)})
    values = checkpoint.load("lm_head.weight")[0]
    assert values.tolist() == [q * 0.5 - 1.0 for q in [*range(16), *range(15, -1, -1)]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_float_types_stay(dtype: torch.dtype, write_gguf: Callable[..., Path]) -> None:
    values = torch.randn(3, 4).to(dtype)
    raw = values.view(torch.uint8).numpy()
    kinds = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    array = (raw, GGMLQuantizationType.BF16) if dtype is torch.bfloat16 else values.numpy()
    checkpoint = _one_tensor(write_gguf, {"output.weight": array})
    assert checkpoint.tensors["lm_head.weight"].stored == kinds[dtype]
    loaded = checkpoint.load("lm_head.weight")
    assert loaded.dtype is dtype
    assert torch.equal(loaded, values)


def test_unsupported_type_names_tensor_and_type(write_gguf: Callable[..., Path]) -> None:
    rows = np.zeros((1, gguf.GGML_QUANT_SIZES[GGMLQuantizationType.IQ1_S][1]), np.uint8)
    with pytest.raises(CheckpointError, match=r"unsupported quantisation IQ1_S \(as in output\.weight\).*Q4_K"):
        _one_tensor(write_gguf, {"output.weight": (rows, GGMLQuantizationType.IQ1_S)})


def test_rope_freqs_become_llama3_scaling(write_gguf: Callable[..., Path]) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    factors = np.array(_llama3_factors(32, 10000.0, 8.0, 8192), np.float32)
    assert ((factors > 1.0) & (factors < 8.0)).any()
    checkpoint = _one_tensor(write_gguf, {ROPE_FREQS: factors}, "llama")
    assert checkpoint.config["rope_scaling"] == scaling
    assert ROPE_FREQS not in checkpoint.tensors
    ones = _one_tensor(write_gguf, {ROPE_FREQS: np.ones(32, np.float32)}, "llama")
    assert ones.config["rope_scaling"] is None
    with pytest.raises(CheckpointError, match="not those of llama3"):
        _one_tensor(write_gguf, {ROPE_FREQS: np.array([1, 9, 2, 9], np.float32)}, "llama")


def test_split_file_is_refused(write_gguf: Callable[..., Path]) -> None:
    path = write_gguf("llama", {"split.count": 3}, {"x": np.zeros(1, np.float32)})
    with pytest.raises(CheckpointError, match="one of 3 parts"):
        GGUFCheckpoint(path)

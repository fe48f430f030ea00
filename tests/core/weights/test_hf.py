from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from isoinfer.errors import CheckpointError
from isoinfer.weights.hf import INDEX_NAME, HFCheckpoint


def test_reads_config_tensors_and_types(hf_folder: Path) -> None:
    checkpoint = HFCheckpoint(hf_folder)
    assert checkpoint.config["architectures"] == ["LlamaForCausalLM"]
    assert checkpoint.generation_config == {"eos_token_id": [1, 2]}
    assert checkpoint.tensors["a.weight"].shape == (2, 3)
    assert checkpoint.tensors["b.weight"].stored == "BF16"
    assert torch.equal(checkpoint.load("a.weight"), torch.arange(6.0).reshape(2, 3))
    assert checkpoint.load("b.weight").dtype is torch.bfloat16


def test_generation_config_is_optional(hf_folder: Path) -> None:
    (hf_folder / "generation_config.json").unlink()
    assert HFCheckpoint(hf_folder).generation_config == {}


@pytest.mark.parametrize("arch", ["llama", "qwen3moe", "gpt-oss"])
def test_sharded_checkpoint_of_transformers(arch: str, tiny_model: Callable[[str], Any], tmp_path: Path) -> None:
    tiny_model(arch).save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / INDEX_NAME).exists()
    names = json.loads((tmp_path / INDEX_NAME).read_text())["weight_map"]
    checkpoint = HFCheckpoint(tmp_path)
    assert set(checkpoint.tensors) == set(names)
    state = tiny_model(arch).state_dict()
    for name in set(state) & set(names):
        assert torch.equal(checkpoint.load(name), state[name])


def _write_shards(folder: Path, names: dict[str, str]) -> None:
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": names}))


def test_index_that_names_a_missing_shard(hf_folder: Path) -> None:
    _write_shards(hf_folder, {"a.weight": "one.safetensors", "c.weight": "two.safetensors"})
    with pytest.raises(CheckpointError, match=r"missing: two\.safetensors"):
        HFCheckpoint(hf_folder)


def test_index_that_names_a_missing_tensor(hf_folder: Path) -> None:
    _write_shards(hf_folder, {"a.weight": "one.safetensors", "c.weight": "one.safetensors"})
    with pytest.raises(CheckpointError, match=r"no shard holds: c\.weight"):
        HFCheckpoint(hf_folder)


def test_no_safetensors_names_the_other_files(hf_folder: Path) -> None:
    (hf_folder / "model.safetensors").rename(hf_folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"No \*\.safetensors.*pytorch_model\.bin"):
        HFCheckpoint(hf_folder)


@pytest.mark.parametrize("keep", [0, 4, 20, -1])
def test_truncated_safetensors(hf_folder: Path, keep: int) -> None:
    path = hf_folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged or truncated"):
        HFCheckpoint(hf_folder)


def test_damaged_header(hf_folder: Path) -> None:
    path = hf_folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[8:20] = b"\xff" * 12
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        HFCheckpoint(hf_folder)


@pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
def test_damaged_config(hf_folder: Path, content: str) -> None:
    (hf_folder / "config.json").write_text(content, errors="surrogateescape")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        HFCheckpoint(hf_folder)


def test_unsupported_quantisation_method(hf_folder: Path) -> None:
    (hf_folder / "config.json").write_text('{"quantization_config": {"quant_method": "gptq"}}')
    with pytest.raises(CheckpointError, match=r"'gptq', which is not supported \(supported: mxfp4"):
        HFCheckpoint(hf_folder)


def test_mxfp4_experts_appear_dequantised_under_their_base_name(hf_folder: Path) -> None:
    blocks = torch.randint(0, 256, (2, 12, 3, 16), dtype=torch.uint8)
    scales = torch.randint(120, 130, (2, 12, 3), dtype=torch.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = {f"{name}_blocks": blocks, f"{name}_scales": scales, f"{name}_bias": torch.zeros(2, 12)}
    save_file(tensors, hf_folder / "model.safetensors")
    checkpoint = HFCheckpoint(hf_folder)
    assert set(checkpoint.tensors) == {name, f"{name}_bias"}
    assert checkpoint.tensors[name].shape == (2, 96, 12)
    assert torch.equal(checkpoint.load(name), convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))


def test_mxfp4_of_the_wrong_shape(hf_folder: Path) -> None:
    tensors = {"x_blocks": torch.zeros(2, 3, 16, dtype=torch.uint8), "x_scales": torch.zeros(2, 3, dtype=torch.uint8)}
    save_file(tensors, hf_folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"x_blocks.*are not MXFP4"):
        HFCheckpoint(hf_folder)

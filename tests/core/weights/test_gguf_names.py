from __future__ import annotations

import gguf
import pytest
import torch
from gguf.constants import MODEL_ARCH

from isoinfer.errors import CheckpointError
from isoinfer.weights.gguf_header import GGUFHeader, GGUFTensor
from isoinfer.weights.gguf_names import translate, unpermute_rotary

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def _header(*names: str, shape: tuple[int, ...] = (4, 8, 8)) -> GGUFHeader:
    tensor = GGUFTensor(shape=shape, kind=gguf.GGMLQuantizationType.F32, offset=0, nbytes=0)
    return GGUFHeader(metadata={}, tensors=dict.fromkeys(names, tensor))


@pytest.mark.parametrize(
    ("arch", "kind"), [("qwen2", MODEL_ARCH.QWEN2), ("qwen3", MODEL_ARCH.QWEN3), ("qwen3moe", MODEL_ARCH.QWEN3MOE)]
)
def test_names_invert_the_gguf_packages_map(arch: str, kind: MODEL_ARCH) -> None:
    to_gguf = gguf.get_tensor_name_map(kind, 1)
    stems = [name.format(bid=0) for tensor in gguf.MODEL_TENSORS[kind] if (name := gguf.TENSOR_NAMES[tensor])]
    stems = [stem for stem in stems if stem != "rope_freqs" and "exps" not in stem]
    recipes = translate(_header(*(f"{stem}.weight" for stem in stems)), arch, HEADS)
    back = {to_gguf.get_name(name, try_suffixes=(".weight",)): name for name in recipes}
    assert set(back) == {f"{stem}.weight" for stem in stems}


def test_unpermute_undoes_the_interleaving_of_halves() -> None:
    rows = torch.arange(2 * 8 * 3.0).reshape(2 * 8, 3)
    interleaved = rows.reshape(2, 2, 4, 3).swapaxes(1, 2).reshape(16, 3)
    assert not torch.equal(interleaved, rows)
    assert torch.equal(unpermute_rotary(interleaved, 2), rows)


def test_experts_are_named_one_by_one() -> None:
    recipes = translate(_header("blk.3.ffn_down_exps.weight"), "qwen3moe", HEADS)
    assert list(recipes) == [f"model.layers.3.mlp.experts.{expert}.down_proj.weight" for expert in range(4)]
    assert {recipe.shape for recipe in recipes.values()} == {(8, 8)}


def test_unknown_tensors_are_named() -> None:
    with pytest.raises(CheckpointError, match=r"blk\.0\.ssm_a\.weight, v\.blk\.0\.attn_q\.weight"):
        translate(_header("blk.0.ssm_a.weight", "token_embd.weight", "v.blk.0.attn_q.weight"), "llama", HEADS)


def test_gpt_oss_gate_without_up() -> None:
    with pytest.raises(CheckpointError, match=r"not blk\.0\.ffn_up_exps\.weight"):
        translate(_header("blk.0.ffn_gate_exps.weight"), "gpt-oss", HEADS)

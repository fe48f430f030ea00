"""Which Hugging Face tensors a GGUF file's tensors are, and what must be done to them on the way.

What it is not: a reader. It makes a plan from names and shapes; `gguf_file.py` carries it out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from isoinfer.errors import CheckpointError
from isoinfer.weights.gguf_header import GGUFHeader, GGUFTensor

ROPE_FREQS = "rope_freqs.weight"
Combine = Callable[[list[torch.Tensor]], torch.Tensor]

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_MOE = {"ffn_gate_inp": "mlp.gate"}
_LAYER_GPT_OSS = {"ffn_gate_inp": "mlp.router", "post_attention_norm": "post_attention_layernorm"}
_EXPERT = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_IN_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to make one HF tensor: load `sources` (only slice `expert` of the outer dimension, if given) and combine."""

    sources: tuple[str, ...]
    shape: tuple[int, ...]
    combine: Combine | None = None
    expert: int | None = None


def translate(header: GGUFHeader, arch: str, config: Mapping[str, Any]) -> dict[str, Recipe]:
    """HF name -> recipe for every tensor of the file. CheckpointError names tensors without a counterpart."""
    recipes: dict[str, Recipe] = {}
    unknown = []
    for name, tensor in header.tensors.items():
        found = dict(_translate_one(name, tensor, header, arch, config))
        if not found and name != ROPE_FREQS and not _is_second_half(name, arch):
            unknown.append(name)
        recipes |= found
    if unknown:
        raise CheckpointError(
            f"The GGUF file of architecture {arch} holds tensors that this architecture lacks: {', '.join(unknown)}. "
            "It may be a variant that is not supported."
        )
    return recipes


def _translate_one(
    name: str, tensor: GGUFTensor, header: GGUFHeader, arch: str, config: Mapping[str, Any]
) -> Iterator[tuple[str, Recipe]]:
    stem, _, suffix = name.rpartition(".")
    if stem in _TOP:
        yield f"{_TOP[stem]}.{suffix}", Recipe(sources=(name,), shape=tensor.shape)
    match = _IN_LAYER.fullmatch(name)
    if match is None:
        return
    layer, stem, suffix = match.groups()
    prefix = f"model.layers.{layer}."
    names = _LAYER | (_LAYER_GPT_OSS if arch == "gpt-oss" else _LAYER_MOE)
    if stem in names:
        combine = _unpermute_rule(stem, arch, config)
        yield f"{prefix}{names[stem]}.{suffix}", Recipe(sources=(name,), shape=tensor.shape, combine=combine)
    elif arch == "gpt-oss":
        yield from _gpt_oss(name, prefix, header)
    elif stem in _EXPERT:
        for expert in range(tensor.shape[0]):
            hf_name = f"{prefix}mlp.experts.{expert}.{_EXPERT[stem]}.{suffix}"
            yield hf_name, Recipe(sources=(name,), shape=tensor.shape[1:], expert=expert)


def _is_second_half(name: str, arch: str) -> bool:
    """The up projection of gpt-oss is translated together with its gate."""
    return arch == "gpt-oss" and ".ffn_up_exps." in name


def _unpermute_rule(stem: str, arch: str, config: Mapping[str, Any]) -> Combine | None:
    """Files of arch llama store Q and K rows for interleaved rotary pairs; HF's rotary pairs are halves."""
    if arch != "llama" or stem not in ("attn_q", "attn_k"):
        return None
    num_heads = config["num_attention_heads" if stem == "attn_q" else "num_key_value_heads"]
    return lambda parts: unpermute_rotary(parts[0], num_heads)


def unpermute_rotary(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows `[num_heads * D, ...]`; in each head, rotary pairs (2i, 2i + 1) become pairs (i, D/2 + i)."""
    pairs = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def _gpt_oss(name: str, prefix: str, header: GGUFHeader) -> Iterator[tuple[str, Recipe]]:
    """Sinks, and experts as HF stacks them: gate and up interleaved, weights `[E, in, out]`."""
    tensor = header.tensors[name]
    if ".attn_sinks." in name:
        yield f"{prefix}self_attn.sinks", Recipe(sources=(name,), shape=tensor.shape)
        return
    is_weight = name.endswith(".weight")
    suffix = "" if is_weight else "_bias"
    if ".ffn_down_exps." in name:
        shape = _swap_last(tensor.shape) if is_weight else tensor.shape
        combine = _transpose if is_weight else None
        yield f"{prefix}mlp.experts.down_proj{suffix}", Recipe(sources=(name,), shape=shape, combine=combine)
    elif ".ffn_gate_exps." in name:
        up = name.replace("ffn_gate_exps", "ffn_up_exps")
        if up not in header.tensors:
            raise CheckpointError(f"The GGUF file holds {name} but not {up}. Download it again.")
        stacked = (tensor.shape[0], 2 * tensor.shape[1], *tensor.shape[2:])
        yield (
            f"{prefix}mlp.experts.gate_up_proj{suffix}",
            Recipe(
                sources=(name, up),
                shape=_swap_last(stacked) if is_weight else stacked,
                combine=_interleave_transpose if is_weight else _interleave,
            ),
        )


def _swap_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-2], shape[-1], shape[-2])


def _transpose(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0].transpose(1, 2)


def _interleave(parts: list[torch.Tensor]) -> torch.Tensor:
    """Gate rows at even places, up rows at odd ones."""
    gate, up = parts
    return torch.stack((gate, up), dim=2).flatten(1, 2)


def _interleave_transpose(parts: list[torch.Tensor]) -> torch.Tensor:
    return _interleave(parts).transpose(1, 2)

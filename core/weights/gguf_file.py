"""A GGUF file as a checkpoint: names, config and tensor order translated to Hugging Face's.

Only the header is read at open; `load` dequantises one tensor with the gguf package.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from isoinfer.errors import CheckpointError
from isoinfer.frontend.tokenizer import Tokenizer
from isoinfer.weights.checkpoint import TensorInfo
from isoinfer.weights.gguf_config import gguf_arch, gguf_config
from isoinfer.weights.gguf_header import GGUFTensor, read_gguf_header
from isoinfer.weights.gguf_names import ROPE_FREQS, Recipe, translate
from isoinfer.weights.gguf_rope import llama3_scaling

_FLOATS = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
_QUANTISED = (
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
_SUPPORTED = frozenset(_FLOATS) | {GGMLQuantizationType[name] for name in _QUANTISED}


class GGUFCheckpoint:
    """An opened GGUF file. Experts of Qwen3-MoE appear one by one, those of gpt-oss stacked, as HF stores them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header = read_gguf_header(path)
        _check_whole(path, self._header.metadata)
        _check_kinds(path, self._header.tensors)
        self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        config = gguf_config(self._header)
        self._recipes = translate(self._header, gguf_arch(self._header), config)
        if ROPE_FREQS in self._header.tensors:
            factors = self._read(ROPE_FREQS, None).tolist()
            config["rope_scaling"] = llama3_scaling(factors, config["rope_theta"]) or config["rope_scaling"]
        self._config = config
        self._tensors = {name: self._describe(recipe) for name, recipe in self._recipes.items()}

    @property
    def path(self) -> str:
        return str(self._path)

    @property
    def config(self) -> Mapping[str, Any]:
        return self._config

    @property
    def generation_config(self) -> Mapping[str, Any]:
        """Start and end tokens only: GGUF stores no sampling defaults."""
        names = ("bos_token_id", "eos_token_id")
        return {name: self._config[name] for name in names if self._config[name] is not None}

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def load(self, name: str) -> torch.Tensor:
        """A copy of the tensor: as stored, or float32 where it was quantised. KeyError if not in `tensors`."""
        recipe = self._recipes[name]
        parts = [self._read(source, recipe.expert) for source in recipe.sources]
        return recipe.combine(parts) if recipe.combine is not None else parts[0]

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_gguf(self._header.metadata)

    def _describe(self, recipe: Recipe) -> TensorInfo:
        return TensorInfo(shape=recipe.shape, stored=self._header.tensors[recipe.sources[0]].kind.name)

    def _read(self, name: str, expert: int | None) -> torch.Tensor:
        tensor = self._header.tensors[name]
        shape, offset, nbytes = tensor.shape, tensor.offset, tensor.nbytes
        if expert is not None:
            nbytes //= shape[0]
            offset += expert * nbytes
            shape = shape[1:]
        raw = self._bytes[offset : offset + nbytes]
        if tensor.kind in _FLOATS:
            return torch.from_numpy(raw.copy()).view(_FLOATS[tensor.kind]).reshape(shape)
        rows = raw.reshape(-1, nbytes * shape[-1] // _count(shape))
        return torch.from_numpy(dequantize(rows, tensor.kind)).reshape(shape)


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _check_whole(path: Path, metadata: Mapping[str, Any]) -> None:
    parts = metadata.get("split.count", 1)
    if parts > 1:
        raise CheckpointError(f"{path} is one of {parts} parts of a split GGUF file. Merge them into one file first.")


def _check_kinds(path: Path, tensors: Mapping[str, GGUFTensor]) -> None:
    bad = {tensor.kind.name: name for name, tensor in tensors.items() if tensor.kind not in _SUPPORTED}
    if bad:
        found = ", ".join(f"{kind} (as in {name})" for kind, name in sorted(bad.items()))
        known = ", ".join(sorted(kind.name for kind in _SUPPORTED))
        raise CheckpointError(f"{path} has the unsupported quantisation {found}. Supported: {known}. Use another file.")

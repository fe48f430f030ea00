"""A Hugging Face folder as a checkpoint: config.json and safetensors, in one file or sharded.

Tensors are memory-mapped, never read at open. Pairs `X_blocks`/`X_scales` (MXFP4, as gpt-oss stores
its experts) appear as one tensor `X`, in the orientation of the unquantised checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from isoinfer.errors import CheckpointError
from isoinfer.frontend.tokenizer import Tokenizer
from isoinfer.weights.checkpoint import TensorInfo
from isoinfer.weights.mxfp4 import dequantize_mxfp4, mxfp4_shape

if TYPE_CHECKING:
    from collections.abc import Iterable

INDEX_NAME = "model.safetensors.index.json"
SUPPORTED_QUANT_METHODS = ("mxfp4",)
_BLOCKS, _SCALES = "_blocks", "_scales"


class HFCheckpoint:
    """An opened folder. Tensors are views of the mapped files: copy before the files may change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = read_json(folder / "config.json")
        self._generation_config = read_json(folder / "generation_config.json", optional=True)
        _check_quantization(folder, self._config)
        self._shards = {name: _open_shard(folder / name) for name in _shard_names(folder)}
        self._where = self._locate()
        self._tensors = dict(self._describe())

    @property
    def path(self) -> str:
        return str(self._folder)

    @property
    def config(self) -> Mapping[str, Any]:
        return self._config

    @property
    def generation_config(self) -> Mapping[str, Any]:
        return self._generation_config

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def load(self, name: str) -> torch.Tensor:
        """The tensor, as stored; float32 where it was MXFP4. KeyError if `name` is not in `tensors`."""
        if self._tensors[name].stored == "MXFP4":
            return dequantize_mxfp4(self._read(name + _BLOCKS), self._read(name + _SCALES))
        return self._read(name)

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_files(self._folder)

    def _read(self, name: str) -> torch.Tensor:
        shard = self._where[name]
        try:
            tensor: torch.Tensor = self._shards[shard].get_tensor(name)
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"Cannot read tensor {name} from {self._folder / shard}: {error}") from error
        return tensor

    def _locate(self) -> dict[str, str]:
        """Which shard holds each stored tensor."""
        where = {name: shard for shard, handle in self._shards.items() for name in handle.keys()}  # noqa: SIM118
        lost = sorted(_indexed_names(self._folder) - where.keys())
        if lost:
            raise CheckpointError(
                f"{self._folder / INDEX_NAME} names tensors that no shard holds: {', '.join(lost)}. "
                "Download the files again."
            )
        return where

    def _describe(self) -> Iterable[tuple[str, TensorInfo]]:
        for name, shard in self._where.items():
            part = self._shards[shard].get_slice(name)
            shape = tuple(part.get_shape())
            base = name.removesuffix(_BLOCKS)
            if name.endswith(_SCALES) and name.removesuffix(_SCALES) + _BLOCKS in self._where:
                continue
            if base != name and base + _SCALES in self._where:
                yield base, self._describe_mxfp4(base, shape)
            else:
                yield name, TensorInfo(shape=shape, stored=str(part.get_dtype()))

    def _describe_mxfp4(self, base: str, blocks_shape: tuple[int, ...]) -> TensorInfo:
        scales_name = base + _SCALES
        scales_shape = tuple(self._shards[self._where[scales_name]].get_slice(scales_name).get_shape())
        if len(blocks_shape) != 4 or blocks_shape[-1] != 16 or scales_shape != blocks_shape[:-1]:
            raise CheckpointError(
                f"{base}{_BLOCKS} {list(blocks_shape)} and {scales_name} {list(scales_shape)} in {self._folder} "
                "are not MXFP4: expected uint8 [experts, rows, groups, 16] and [experts, rows, groups]."
            )
        return TensorInfo(shape=mxfp4_shape(blocks_shape), stored="MXFP4")


def read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """A JSON object from a file; {} if it is `optional` and absent. CheckpointError otherwise."""
    if optional and not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"Cannot read {path}: {error}. Download the file again.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object. Download the file again.")
    return content


def _check_quantization(folder: Path, config: Mapping[str, Any]) -> None:
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method is not None and method not in SUPPORTED_QUANT_METHODS:
        raise CheckpointError(
            f"{folder} is quantised with '{method}', which is not supported (supported: "
            f"{', '.join(SUPPORTED_QUANT_METHODS)}, and the types of GGUF files). Use the unquantised checkpoint."
        )


def _shard_names(folder: Path) -> list[str]:
    if (folder / INDEX_NAME).exists():
        names = sorted(set(_weight_map(folder).values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise CheckpointError(
                f"{folder / INDEX_NAME} names shards that are missing: {', '.join(missing)}. "
                "Download them into the folder."
            )
        return names
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if "model.safetensors" in names:
        return ["model.safetensors"]
    if not names:
        others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for path in folder.glob(pattern))
        hint = f" It holds {', '.join(others)}:" if others else ""
        raise CheckpointError(
            f"No *.safetensors files in {folder}.{hint} give a folder with safetensors or the path of a .gguf file."
        )
    return names


def _weight_map(folder: Path) -> dict[str, str]:
    weight_map = read_json(folder / INDEX_NAME).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / INDEX_NAME} has no weight_map. Download the file again.")
    return weight_map


def _indexed_names(folder: Path) -> set[str]:
    return set(_weight_map(folder)) if (folder / INDEX_NAME).exists() else set()


def _open_shard(path: Path) -> Any:
    """A safetensors handle; its header and the file's length are checked here, its data is only mapped."""
    try:
        return safe_open(str(path), framework="pt", device="cpu")
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or truncated ({error}). Download the file again.") from error

"""What a checkpoint is to the rest of the engine: a config, named tensors and tokenizer files.

A Hugging Face folder and a GGUF file both look like this; GGUF names, config keys and tensor order
are translated to Hugging Face's, so that models and tokenizers know one vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from isoinfer.frontend.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """A stored tensor: logical shape after dequantisation, and the name of its stored format."""

    shape: tuple[int, ...]
    stored: str


class Checkpoint(Protocol):
    """An opened checkpoint. Opening reads headers only; `load` reads and dequantises one tensor."""

    @property
    def path(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]:
        """The content of Hugging Face's config.json (made from metadata for GGUF)."""

    @property
    def generation_config(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...
    def load(self, name: str) -> torch.Tensor:
        """The tensor in its stored float type, or float32 where it was quantised. CheckpointError if damaged."""

    def tokenizer(self) -> Tokenizer: ...

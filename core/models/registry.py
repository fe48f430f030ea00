"""Which architectures exist, by the names that Hugging Face configs use."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from isoinfer.errors import CheckpointError
from isoinfer.models.family import Family
from isoinfer.models.gpt_oss import GPT_OSS
from isoinfer.models.llama import LLAMA, MISTRAL
from isoinfer.models.model import Model
from isoinfer.models.qwen import QWEN2, QWEN3, QWEN3_MOE

_FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, GPT_OSS)

MODELS: Mapping[str, Family] = MappingProxyType({family.architecture: family for family in _FAMILIES})
"""Architecture name to family."""


def resolve(config: Mapping[str, Any]) -> Model:
    """The model of a checkpoint's config. CheckpointError where it names no known architecture or lacks a key."""
    flat = _flatten(config)
    names = flat.get("architectures") or ()
    if isinstance(names, str) or not names:
        raise CheckpointError(f"the config names no architecture ('architectures' is missing); {_known()}")
    family = next((MODELS[name] for name in names if name in MODELS), None)
    if family is None:
        raise CheckpointError(f"architecture {', '.join(map(repr, names))} is not supported; {_known()}")
    return Model(family, family.from_hf({**flat, "architectures": [family.architecture]}))


def _flatten(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Some writers nest the language model's keys in `text_config`; the architecture stays the outer one."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return config
    return {**config, **text, "architectures": config.get("architectures") or text.get("architectures")}


def _known() -> str:
    return f"isoinfer has {', '.join(sorted(MODELS))}"

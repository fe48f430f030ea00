"""isoinfer: one LLM inference engine, every accelerator, the same tokens.

Names are loaded when first used, so that `import isoinfer` is cheap and loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from isoinfer.version import __version__

if TYPE_CHECKING:
    from isoinfer.llm import LLM
    from isoinfer.outputs import CompletionOutput, Logprob, RequestOutput
    from isoinfer.sampling_params import SamplingParams

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput", "SamplingParams", "__version__"]

_HOME = {
    "LLM": "isoinfer.llm",
    "CompletionOutput": "isoinfer.outputs",
    "Logprob": "isoinfer.outputs",
    "RequestOutput": "isoinfer.outputs",
    "SamplingParams": "isoinfer.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'isoinfer' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

"""A model bound to a backend without its weights: which ops it asks for, on a chip that need not be here."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from isoinfer.backends.ops import GATHER_ROWS, REMAP, REMAP_SLOTS, GatherSpec, RemapSlotsSpec, RemapSpec
from isoinfer.engine.explain import BindRecorder
from isoinfer.engine.sampler import Sampler
from isoinfer.models.registry import resolve
from isoinfer.weights.open import open_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from isoinfer.backends.interface import Backend
    from isoinfer.backends.ops import OpSpec


def bound_ops(path: str, backend: Backend, quantization: str | None, window_kv: str = "paged") -> BindRecorder:
    """What the engine would bind for the checkpoint at `path`; only its headers are read. UserErrors as at start."""
    model = resolve(open_checkpoint(path).config)
    if window_kv == "ring":
        model = model.with_rings()
    dtype = backend.capabilities.default_dtype
    recorder = BindRecorder(backend)

    def bind(op: OpSpec, static: Any) -> Callable[..., Any]:
        recorder.note(op, static)  # and nothing more: an op without a provider is an answer here, not an error
        return _never

    nothing, block_size = torch.empty(0, device="meta"), backend.kv_layout(model.kv_specs(dtype)).block_size
    model.build(
        bind,
        defaultdict(lambda: nothing),
        dtype,
        block_size,
        max_positions=1,
        place=_as_it_is,
        quant=quantization,
    )
    bind(GATHER_ROWS, GatherSpec(width=model.config.hidden_size, dtype=dtype))
    bind(REMAP, RemapSpec(num_drafts=0))
    bind(REMAP_SLOTS, RemapSlotsSpec(block_size=block_size))
    Sampler(backend, bind, model.config.vocab_size)
    return recorder


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _never(*args: Any) -> None:
    raise AssertionError("nothing runs in a dry build")

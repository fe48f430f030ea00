"""What a layer is built from: a binder, prepared weights and the run's dtype, block size and quantisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from isoinfer.backends.interface import Weight
    from isoinfer.backends.ops.spec import OpSpec

Bind = Callable[["OpSpec", Any], Callable[..., Any]]
"""`Backend.bind`: an op and its static spec to the provider's own function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything that layer constructors need; layers keep what they take from it, never the whole.

    `dtype`: activations. `block_size`: tokens in a KV block. `quant`: format of linear weights or None.
    """

    bind: Bind
    weights: Mapping[str, Weight]
    dtype: str
    block_size: int
    quant: str | None

    def weight(self, name: str) -> Weight:
        """The prepared weight `name`."""
        return self.weights[name]

    def vector(self, name: str) -> torch.Tensor:
        """The weight `name` of role "vector", which backends prepare as a plain tensor on the device."""
        vector = self.weights[name]
        assert isinstance(vector, torch.Tensor), (name, type(vector))
        return vector

    def maybe_vector(self, name: str, present: bool) -> torch.Tensor | None:
        """`vector(name)` where the model has it, else None."""
        return self.vector(name) if present else None

"""A binder over the op references that records what was bound, and parts made with it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from isoinfer.backends.ops.linear import DenseWeight
from isoinfer.layers.parts import Parts


@pytest.fixture
def bound() -> list[tuple[str, Any]]:
    """(op name, static spec) of every bind, in order."""
    return []


@pytest.fixture
def make_parts(bound: list[tuple[str, Any]]) -> Callable[[dict[str, torch.Tensor]], Parts]:
    """Float32 parts from plain tensors: one-dimensional ones are vectors, all others dense weights."""

    def bind(op: Any, static: Any) -> Callable[..., Any]:
        bound.append((op.name, static))
        return functools.partial(op.reference, static)

    def make(tensors: dict[str, torch.Tensor]) -> Parts:
        weights = {name: x if x.dim() == 1 else DenseWeight(x) for name, x in tensors.items()}
        return Parts(bind=bind, weights=weights, dtype="float32", block_size=4, quant=None)

    return make


@pytest.fixture
def randn() -> Callable[..., torch.Tensor]:
    """Seeded normal tensors."""
    generator = torch.Generator().manual_seed(3)
    return lambda *shape: torch.randn(*shape, generator=generator)

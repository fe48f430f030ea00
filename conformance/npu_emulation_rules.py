"""What every emulated operator asks of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class ConstraintError(RuntimeError):
    """A call that a device would not refuse, but would answer wrongly."""


def require(holds: bool, rule: str, *seen: Any) -> None:
    """ConstraintError with the rule and what was seen, unless it holds."""
    if not holds:
        raise ConstraintError(f"{rule}{': got ' if seen else ''}{', '.join(str(item) for item in seen)}")


def require_contiguous(**tensors: torch.Tensor) -> None:
    """Operators read memory in order, whatever the strides say."""
    for name, tensor in tensors.items():
        require(tensor.is_contiguous(), f"{name} must be contiguous", tuple(tensor.stride()))


def require_dtype(allowed: Sequence[torch.dtype], **tensors: torch.Tensor) -> None:
    """One of the operator's dtypes."""
    for name, tensor in tensors.items():
        require(tensor.dtype in allowed, f"{name} must be one of {', '.join(map(str, allowed))}", tensor.dtype)


def require_same_dtype(**tensors: torch.Tensor) -> None:
    """All of one dtype."""
    require(len({t.dtype for t in tensors.values()}) == 1, f"{', '.join(tensors)} must have one dtype", *tensors)


def require_host_list(name: str, values: Any) -> None:
    """A list of Python integers: the operator reads it on the host."""
    good = isinstance(values, list | tuple) and all(type(value) is int for value in values)
    require(good, f"{name} must be a host list of int", type(values).__name__)

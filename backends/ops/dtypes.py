"""Data types by name, and the one rounding rule of all references. Knows nothing of devices."""

from __future__ import annotations

import torch

_BY_NAME = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype that a static spec names."""
    assert name in _BY_NAME, f"no such activation dtype {name!r}; known: {sorted(_BY_NAME)}"
    return _BY_NAME[name]


def dtype_name(dtype: torch.dtype) -> str:
    """The name that static specs use for `dtype`."""
    return str(dtype).removeprefix("torch.")


def compute_dtype(x: torch.Tensor) -> torch.dtype:
    """What a reference computes in: float32, or float64 when it is asked for the truth."""
    return torch.promote_types(x.dtype, torch.float32)


def unit_roundoff(name: str) -> float:
    """Largest relative error of one rounding to `name` (an accumulator: "tf32" is known too)."""
    assert name in _UNIT_ROUNDOFF, f"no such accumulator {name!r}; known: {sorted(_UNIT_ROUNDOFF)}"
    return _UNIT_ROUNDOFF[name]

"""Parts hand out vectors as tensors and refuse what is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


def test_vectors(make_parts: Callable[..., Any]) -> None:
    parts = make_parts({"v": torch.ones(3), "w": torch.ones(3, 3)})
    assert torch.equal(parts.vector("v"), torch.ones(3))
    assert parts.maybe_vector("absent", False) is None
    with pytest.raises(AssertionError):
        parts.vector("w")

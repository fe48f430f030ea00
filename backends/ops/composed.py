"""The decomposition of ops that are short sequences of tensor operations: their reference, on the device.

Valid where the device's tensors are torch tensors, which is what the seam hands around.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


def torch_composition(
    reference: Callable[..., Any],
) -> Callable[[Callable[..., Callable[..., Any]], Any], Callable[..., Any]]:
    """A decomposition that runs `reference` on the arguments where they are."""

    def decompose(bind: Callable[..., Callable[..., Any]], static: Any) -> Callable[..., Any]:
        return partial(reference, static)

    return decompose

"""The dense feed-forward against its formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from isoinfer.layers.mlp import Mlp


@pytest.mark.parametrize("bias", [False, True])
def test_gate_times_up(make_parts: Callable[..., Any], randn: Callable[..., Any], bias: bool) -> None:
    tensors = {"m.gate_up": randn(12, 8), "m.gate_up_bias": randn(12), "m.down": randn(8, 6), "m.down_bias": randn(8)}
    x = randn(3, 8)
    out = Mlp(make_parts(tensors), "m", hidden_size=8, intermediate_size=6, bias=bias)(x)
    on = float(bias)
    gate, up = (x @ tensors["m.gate_up"].T + on * tensors["m.gate_up_bias"]).chunk(2, dim=-1)
    expected = (torch.nn.functional.silu(gate) * up) @ tensors["m.down"].T + on * tensors["m.down_bias"]
    torch.testing.assert_close(out, expected)

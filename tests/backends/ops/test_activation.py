"""Activations against plain python."""

from __future__ import annotations

import math

import torch

from isoinfer.backends.ops import SILU_MUL, SWIGLU_CLIPPED, ActivationSpec, SwigluClippedSpec, bind_reference


def test_silu_mul_takes_the_gate_from_the_first_half() -> None:
    op = bind_reference(SILU_MUL, ActivationSpec(intermediate_size=2, dtype="float64"))
    x = torch.tensor([[1.5, -2.0, 3.0, 0.5]], dtype=torch.float64)
    expected = [1.5 / (1 + math.exp(-1.5)) * 3.0, -2.0 / (1 + math.exp(2.0)) * 0.5]
    torch.testing.assert_close(op(x), torch.tensor([expected], dtype=torch.float64))


def test_swiglu_clamps_gate_above_and_up_on_both_sides() -> None:
    static = SwigluClippedSpec(intermediate_size=3, alpha=1.702, limit=7.0, dtype="float64")
    x = torch.tensor([[9.0, -9.0, 1.0, -8.0, 8.0, 2.0]], dtype=torch.float64)

    def one(gate: float, up: float) -> float:
        return (up + 1) * gate / (1 + math.exp(-1.702 * gate))

    expected = torch.tensor([[one(7.0, -7.0), one(-9.0, 7.0), one(1.0, 2.0)]], dtype=torch.float64)
    torch.testing.assert_close(bind_reference(SWIGLU_CLIPPED, static)(x), expected)

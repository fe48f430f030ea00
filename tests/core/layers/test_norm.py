"""Norms: per head over strided rows, and with the residual written in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from isoinfer.layers.norm import AddRmsNorm, HeadNorm, RmsNorm

Make = Callable[..., Any]


def plain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)


def test_rms_norm(make_parts: Make, randn: Make) -> None:
    x, weight = randn(3, 8), randn(8)
    torch.testing.assert_close(RmsNorm(make_parts({"n": weight}), "n", hidden_size=8, eps=1e-6)(x), plain(x, weight))


def test_head_norm_of_a_strided_view(make_parts: Make, randn: Make) -> None:
    x, weight = randn(3, 40)[:, 8:32], randn(8)
    normed_TND = HeadNorm(make_parts({"n": weight}), "n", num_heads=3, head_dim=8, eps=1e-6)(x)
    torch.testing.assert_close(normed_TND, plain(x.unflatten(-1, (3, 8)), weight))


def test_add_rms_norm_updates_the_residual_in_place(make_parts: Make, randn: Make) -> None:
    x, residual, weight = randn(3, 8), randn(3, 8), randn(8)
    expected = x + residual
    normed = AddRmsNorm(make_parts({"n": weight}), "n", hidden_size=8, eps=1e-6)(x, residual)
    torch.testing.assert_close(residual, expected)
    torch.testing.assert_close(normed, plain(expected, weight))

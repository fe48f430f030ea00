"""Rotation: against complex multiplication for both pairings, and pass-through of the rest."""

from __future__ import annotations

import pytest
import torch

from isoinfer.backends.ops import ROPE, bind_reference


@pytest.mark.parametrize("index", range(5))
def test_rotation_is_a_complex_product(index: int) -> None:
    sample = list(ROPE.samples(torch.float64, 5))[index]
    static, (q, k, positions, table) = sample.static, sample.args
    before = (q.clone(), k.clone())
    bind_reference(ROPE, static)(q, k, positions, table)
    half, rotary = static.rotary_dim // 2, static.rotary_dim
    turn = torch.polar(
        torch.ones(1, dtype=torch.float64),
        positions.double()[:, None, None] / 1e4 ** (torch.arange(half, dtype=torch.float64) / half),
    )
    for x, old in zip((q, k), before, strict=True):
        first = old[..., 0:rotary:2] if static.interleaved else old[..., :half]
        second = old[..., 1:rotary:2] if static.interleaved else old[..., half:rotary]
        turned = torch.complex(first, second) * turn
        new_first = x[..., 0:rotary:2] if static.interleaved else x[..., :half]
        new_second = x[..., 1:rotary:2] if static.interleaved else x[..., half:rotary]
        torch.testing.assert_close(new_first, turned.real, rtol=0, atol=1e-4)  # the table is float32
        torch.testing.assert_close(new_second, turned.imag, rtol=0, atol=1e-4)
        assert torch.equal(x[..., rotary:], old[..., rotary:])


def test_position_zero_changes_nothing() -> None:
    sample = next(iter(ROPE.samples(torch.float32, 0)))
    q, k, positions, table = sample.args
    before = q.clone()
    bind_reference(ROPE, sample.static)(q, k, torch.zeros_like(positions), table)
    assert torch.equal(q, before)

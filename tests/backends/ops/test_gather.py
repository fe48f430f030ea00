"""Rows of an activation."""

from __future__ import annotations

import torch

from isoinfer.backends.ops import GATHER_ROWS, bind_reference


def test_rows_come_in_the_order_asked_for() -> None:
    for sample in GATHER_ROWS.samples(torch.float32, 0):
        x, rows = sample.args
        out = bind_reference(GATHER_ROWS, sample.static)(x, rows)
        assert out.shape == (len(rows), x.shape[1])
        assert all(torch.equal(out[r], x[i]) for r, i in enumerate(rows.tolist()))

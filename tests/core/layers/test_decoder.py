"""The residual flow of one decoder layer."""

from __future__ import annotations

from typing import Any

import torch

from isoinfer.layers.decoder import DecoderLayer


def add(x_TH: torch.Tensor, residual_TH: torch.Tensor) -> torch.Tensor:
    """Stands for add_rms_norm without the norm."""
    return residual_TH.add_(x_TH).clone()


def test_both_additions_land_in_the_residual() -> None:
    calls: list[Any] = []

    def attention(x_TH: torch.Tensor, batch: Any, kv: Any) -> torch.Tensor:
        calls.append((x_TH.clone(), batch, kv))
        return 10 * x_TH

    layer = DecoderLayer(attention, add, lambda x_TH: 100 * x_TH, add)  # type: ignore[arg-type]
    normed_TH, residual_TH = torch.full((1, 2), 2.0), torch.ones(1, 2)
    out_TH = layer(normed_TH, residual_TH, "batch", "kv")  # type: ignore[arg-type]
    assert calls[0][1:] == ("batch", "kv")
    assert calls[0][0].tolist() == [[2.0, 2.0]]
    assert residual_TH.tolist() == out_TH.tolist() == [[2121.0, 2121.0]]

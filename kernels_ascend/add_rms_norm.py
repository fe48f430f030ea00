"""Residual addition and RMS normalisation in one pass: the residual is updated in place, then normed as it was rounded.

The kernels are those of rms_norm. Suffixes: T tokens (rows), H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import Launcher
from isoinfer.backends.ops import NormSpec
from isoinfer.kernels_ascend import rms_norm
from isoinfer.kernels_ascend.rms_norm import RmsNormDesc, case, pick_config, prepare, refuse

__all__ = ["case", "descriptions", "make_add_rms_norm", "pick_config", "refuse"]


def descriptions(soc: Soc) -> Iterator[RmsNormDesc]:
    """One description for every configuration on this chip."""
    return rms_norm.descriptions(soc, add=True)


def make_add_rms_norm(spec: NormSpec, soc: Soc, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """add_rms_norm(x_TH, residual_TH, weight_H) -> normed_TH; residual_TH += x_TH. Both may be strided in T."""
    launch, grid = prepare(spec, soc, launcher, add=True), (soc.vector_cores,)
    hidden_size, eps = spec.hidden_size, spec.eps

    def add_rms_norm(x_TH: torch.Tensor, residual_TH: torch.Tensor, weight_H: torch.Tensor) -> torch.Tensor:
        rows, strides = x_TH.shape[0], (x_TH.stride(0), residual_TH.stride(0))
        out_TH = x_TH.new_empty((rows, hidden_size))
        if rows:
            launch(grid, x_TH, residual_TH, weight_H, out_TH, rows, *strides, hidden_size, eps)
        return out_TH

    return add_rms_norm

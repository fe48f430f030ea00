"""Bound RMS norms: alone, per head, and fused with the residual addition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoinfer.backends.ops.norm import ADD_RMS_NORM, RMS_NORM, NormSpec

if TYPE_CHECKING:
    import torch

    from isoinfer.layers.parts import Parts


class RmsNorm:
    """x_TH -> normed_TH."""

    def __init__(self, parts: Parts, name: str, *, hidden_size: int, eps: float) -> None:
        self.weight_H = parts.vector(name)
        self.rms_norm = parts.bind(RMS_NORM, NormSpec(hidden_size=hidden_size, eps=eps, dtype=parts.dtype))

    def __call__(self, x_TH: torch.Tensor) -> torch.Tensor:
        normed_TH: torch.Tensor = self.rms_norm(x_TH, self.weight_H)
        return normed_TH


class HeadNorm:
    """q or k as x_TX (X = heads * head_dim, rows may be strided) -> normed_TND, every head on its own."""

    def __init__(self, parts: Parts, name: str, *, num_heads: int, head_dim: int, eps: float) -> None:
        self.norm = RmsNorm(parts, name, hidden_size=head_dim, eps=eps)
        self.num_heads, self.head_dim = num_heads, head_dim

    def __call__(self, x_TX: torch.Tensor) -> torch.Tensor:
        return self.norm(x_TX.reshape(-1, self.head_dim)).view(-1, self.num_heads, self.head_dim)


class AddRmsNorm:
    """Adds x_TH to residual_TH in place and returns the norm of the updated residual."""

    def __init__(self, parts: Parts, name: str, *, hidden_size: int, eps: float) -> None:
        self.weight_H = parts.vector(name)
        self.add_rms_norm = parts.bind(ADD_RMS_NORM, NormSpec(hidden_size=hidden_size, eps=eps, dtype=parts.dtype))

    def __call__(self, x_TH: torch.Tensor, residual_TH: torch.Tensor) -> torch.Tensor:
        normed_TH: torch.Tensor = self.add_rms_norm(x_TH, residual_TH, self.weight_H)
        return normed_TH

"""The dense gated feed-forward: merged gate and up, SiLU product, down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoinfer.backends.ops.activation import SILU_MUL, ActivationSpec
from isoinfer.layers.linear import Linear

if TYPE_CHECKING:
    import torch

    from isoinfer.layers.parts import Parts


class Mlp:
    """x_TH -> out_TH."""

    def __init__(self, parts: Parts, prefix: str, *, hidden_size: int, intermediate_size: int, bias: bool) -> None:
        wide = 2 * intermediate_size
        self.gate_up = Linear(parts, f"{prefix}.gate_up", in_features=hidden_size, out_features=wide, bias=bias)
        self.down = Linear(parts, f"{prefix}.down", in_features=intermediate_size, out_features=hidden_size, bias=bias)
        spec = ActivationSpec(intermediate_size=intermediate_size, dtype=parts.dtype)
        self.silu_mul = parts.bind(SILU_MUL, spec)

    def __call__(self, x_TH: torch.Tensor) -> torch.Tensor:
        return self.down(self.silu_mul(self.gate_up(x_TH)))

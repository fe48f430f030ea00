"""The sparse feed-forward: router, top-k choice, expert MLPs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoinfer.backends.ops.moe import MOE_EXPERTS, MOE_ROUTE, MoeSpec, RouteSpec
from isoinfer.layers.linear import Linear

if TYPE_CHECKING:
    import torch

    from isoinfer.layers.parts import Parts


class Moe:
    """x_TH -> out_TH. The router's logits are float32, so that rounding ties do not choose experts."""

    def __init__(self, parts: Parts, prefix: str, *, route: RouteSpec, experts: MoeSpec) -> None:
        self.router = Linear(
            parts,
            f"{prefix}.router",
            in_features=experts.hidden_size,
            out_features=experts.num_experts,
            bias=experts.bias,
            out_dtype="float32",
            role="router",
        )
        self.w13, self.w2 = parts.weight(f"{prefix}.w13"), parts.weight(f"{prefix}.w2")
        self.b13_EJ = parts.maybe_vector(f"{prefix}.w13_bias", experts.bias)
        self.b2_EH = parts.maybe_vector(f"{prefix}.w2_bias", experts.bias)
        self.moe_route = parts.bind(MOE_ROUTE, route)
        self.moe_experts = parts.bind(MOE_EXPERTS, experts)

    def __call__(self, x_TH: torch.Tensor) -> torch.Tensor:
        weights_TX, ids_TX = self.moe_route(self.router(x_TH))
        out_TH: torch.Tensor = self.moe_experts(x_TH, weights_TX, ids_TX, self.w13, self.w2, self.b13_EJ, self.b2_EH)
        return out_TH

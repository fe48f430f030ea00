"""A bound linear projection with its weight and optional bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoinfer.backends.ops.linear import LINEAR, LinearSpec
from isoinfer.weights.quantization import quant_of

if TYPE_CHECKING:
    import torch

    from isoinfer.layers.parts import Parts


class Linear:
    """x_TK -> out_TN with weight `name` and, where `bias`, the vector `name`_bias.

    `out_dtype` None = the activation dtype. `role` is that of the weight's rule.
    """

    def __init__(
        self,
        parts: Parts,
        name: str,
        *,
        in_features: int,
        out_features: int,
        bias: bool = False,
        out_dtype: str | None = None,
        role: str = "linear",
    ) -> None:
        self.weight = parts.weight(name)
        self.bias_N = parts.maybe_vector(f"{name}_bias", bias)
        spec = LinearSpec(
            in_features=in_features,
            out_features=out_features,
            bias=bias,
            quant=quant_of(role, parts.quant),
            dtype=parts.dtype,
            out_dtype=out_dtype or parts.dtype,
        )
        self.linear = parts.bind(LINEAR, spec)

    def __call__(self, x_TK: torch.Tensor) -> torch.Tensor:
        out_TN: torch.Tensor = self.linear(x_TK, self.weight, self.bias_N)
        return out_TN

"""Prepared weights of the CPU: packed panels for our kernels, oneDNN's own packing, or plain tensors.

Suffixes: N output features, K input features, E experts, P panels of 32 outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from isoinfer.backends.ops.linear import DenseWeight, Int4Weight, Int8Weight, quantize_int4, quantize_int8

PANEL = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLinear:
    """Panels of 32 outputs, k inside (`[P, K, 32]` float32, `[P, K/2, 32, 2]` bfloat16 and int8).

    `scale_N` for int8; for int4 the float16 scales and minima of the groups."""

    panels: torch.Tensor
    scale_N: torch.Tensor | None
    num_outputs: int
    num_inputs: int

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.panels.nbytes + (self.scale_N.nbytes if self.scale_N is not None else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneDnnLinear:
    """A weight reordered by oneDNN; `num_outputs` is kept because the packed tensor hides its shape."""

    packed: torch.Tensor
    num_outputs: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """One prepared linear weight per expert."""

    linears: tuple[PackedLinear | OneDnnLinear | DenseWeight | Int8Weight, ...]

    @property
    def nbytes(self) -> int:
        """Bytes held by all experts."""
        return sum(linear.nbytes for linear in self.linears)


def pack_panels(tensor_NK: torch.Tensor) -> torch.Tensor:
    """`[N, K]` to panels; outputs past N are zero. K must be even for 16- and 8-bit types."""
    outputs, inputs = tensor_NK.shape
    panels = -(-outputs // PANEL)
    padded = torch.zeros(panels * PANEL, inputs, dtype=tensor_NK.dtype)
    padded[:outputs] = tensor_NK
    if tensor_NK.dtype == torch.float32:
        return padded.view(panels, PANEL, inputs).transpose(1, 2).contiguous()
    return padded.view(panels, PANEL, inputs // 2, 2).transpose(1, 2).contiguous()


def pack_linear(tensor_NK: torch.Tensor, quant: str | None) -> PackedLinear:
    """Pack for our kernels, quantising to int8 by output row first where asked."""
    outputs, inputs = tensor_NK.shape
    if quant == "int4":
        return _pack_int4(quantize_int4(tensor_NK))
    if quant == "int8":
        quantized = quantize_int8(tensor_NK)
        panels = pack_panels(quantized.q_NK)
        return PackedLinear(panels=panels, scale_N=quantized.scale_N.float(), num_outputs=outputs, num_inputs=inputs)
    return PackedLinear(panels=pack_panels(tensor_NK), scale_N=None, num_outputs=outputs, num_inputs=inputs)


def _pack_int4(weight: Int4Weight) -> PackedLinear:
    """Nibbles `[P, K/2, 32]` (low: outputs 0..15 of the panel, high: 16..31) and float16 `[P, G, 2, 32]`."""
    outputs, inputs = weight.q_NK.shape
    panels = pack_panels(weight.q_NK)
    low, high = torch.split(panels.flatten(2), PANEL, 2)
    sides = [pack_panels(side.float()).half() for side in (weight.scale_NG, weight.min_NG)]
    return PackedLinear(
        panels=(low | high << 4).contiguous(),
        scale_N=torch.stack(sides, 2).contiguous(),
        num_outputs=outputs,
        num_inputs=inputs,
    )


def reorder_onednn(tensor_NK: torch.Tensor) -> OneDnnLinear:
    """Let oneDNN choose its blocked layout, once."""
    packed = torch.ops.mkldnn._reorder_linear_weight(tensor_NK.contiguous(), 32)
    return OneDnnLinear(packed=packed, num_outputs=tensor_NK.shape[0], nbytes=tensor_NK.nbytes)

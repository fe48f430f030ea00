"""Dequantising MXFP4: 4-bit floats (e2m1) in groups of 32 with one power-of-two scale (e8m0) each.

What it is not: a kernel. It runs once, at load, one expert at a time, so that temporaries stay small.
"""

from __future__ import annotations

import torch

GROUP = 32
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_SCALE_BIAS = 127


def mxfp4_shape(blocks_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape after dequantisation of blocks `[E, N, G, 16]`: `[E, G * 32, N]`."""
    experts, rows, groups, packed = blocks_shape
    return experts, groups * packed * 2, rows


def dequantize_mxfp4(blocks_ENGB: torch.Tensor, scales_ENG: torch.Tensor) -> torch.Tensor:
    """Float32 experts `[E, K, N]` (input dim before output dim) from packed rows along K.

    `blocks_ENGB` uint8 `[E, N, G, 16]`: 32 values a group, the even one in the low nibble.
    `scales_ENG` uint8 `[E, N, G]`: exponent plus 127.
    """
    experts, rows, groups, packed = blocks_ENGB.shape
    pairs_table = _pairs_table()
    out_ENK = torch.empty(experts, rows, groups * packed * 2)
    for expert in range(experts):
        values = pairs_table[blocks_ENGB[expert].reshape(-1).int()].view(rows, groups, packed * 2)
        exponent = scales_ENG[expert].int().sub_(_SCALE_BIAS).unsqueeze(-1)
        out_ENK[expert] = torch.ldexp(values, exponent).view(rows, -1)
    return out_ENK.transpose(1, 2)


def _pairs_table() -> torch.Tensor:
    """`[256, 2]`: the two values of each byte, so that one look-up serves two weights."""
    byte = torch.arange(256)
    values = torch.tensor(_E2M1)
    return torch.stack((values[byte & 15], values[byte >> 4]), dim=1)

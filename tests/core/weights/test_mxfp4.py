from __future__ import annotations

import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from isoinfer.weights.mxfp4 import dequantize_mxfp4, mxfp4_shape


def test_equals_transformers() -> None:
    torch.manual_seed(0)
    blocks = torch.randint(0, 256, (3, 10, 2, 16), dtype=torch.uint8)
    scales = torch.randint(100, 150, (3, 10, 2), dtype=torch.uint8)
    ours = dequantize_mxfp4(blocks, scales)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert tuple(ours.shape) == mxfp4_shape(tuple(blocks.shape)) == (3, 64, 10)
    assert torch.equal(ours, theirs)


def test_low_nibble_comes_first() -> None:
    blocks = torch.zeros(1, 1, 1, 16, dtype=torch.uint8)
    blocks[0, 0, 0, 0] = 0xF2  # nibbles 2 = 1.0 and 15 = -6.0
    values = dequantize_mxfp4(blocks, torch.tensor([[[128]]], dtype=torch.uint8))[0, :, 0]
    assert values[:3].tolist() == [2.0, -12.0, 0.0]

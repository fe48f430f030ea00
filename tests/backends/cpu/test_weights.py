"""Packed weights: the layout the kernels read, zero padding, and the bytes that are counted."""

from __future__ import annotations

import pytest
import torch

from isoinfer.backends.cpu.weights import PANEL, Experts, pack_linear, pack_panels, reorder_onednn
from isoinfer.backends.ops import quantize_int4, quantize_int8


@pytest.mark.parametrize("outputs", [1, 31, 32, 33, 70])
@pytest.mark.parametrize("inputs", [2, 10, 64])
def test_float32_panels_have_32_outputs_side_by_side(outputs: int, inputs: int) -> None:
    w_NK = torch.randn(outputs, inputs)
    packed = pack_linear(w_NK, None)
    panels = -(-outputs // PANEL)
    assert packed.panels.shape == (panels, inputs, PANEL)
    assert packed.panels.is_contiguous()
    dense = packed.panels.transpose(1, 2).reshape(-1, inputs)
    assert torch.equal(dense[:outputs], w_NK)
    assert not dense[outputs:].any(), "padding must not reach a result"
    assert (packed.num_outputs, packed.num_inputs, packed.scale_N) == (outputs, inputs, None)
    assert packed.nbytes == packed.panels.numel() * 4


@pytest.mark.parametrize("outputs", [1, 33, 64])
def test_bfloat16_panels_keep_pairs_of_inputs_together(outputs: int) -> None:
    w_NK = torch.randn(outputs, 10).bfloat16()
    packed = pack_linear(w_NK, None)
    assert packed.panels.shape == (-(-outputs // PANEL), 5, PANEL, 2)
    dense = packed.panels.transpose(1, 2).reshape(-1, 10)
    assert torch.equal(dense[:outputs], w_NK)
    assert not dense[outputs:].any()


def test_int8_panels_are_the_quantised_weight_with_its_scales() -> None:
    w_NK = torch.randn(40, 12)
    packed, quantized = pack_linear(w_NK, "int8"), quantize_int8(w_NK)
    assert packed.panels.dtype == torch.int8
    dense = packed.panels.transpose(1, 2).reshape(-1, 12)
    assert torch.equal(dense[:40], quantized.q_NK)
    assert not dense[40:].any()
    assert packed.scale_N is not None
    assert torch.equal(packed.scale_N, quantized.scale_N)
    assert packed.nbytes == 64 * 12 + 40 * 4


def test_int4_panels_hold_two_outputs_a_byte_with_scale_and_minimum_of_each_group() -> None:
    w_NK = torch.randn(40, 64)
    packed, quantized = pack_linear(w_NK, "int4"), quantize_int4(w_NK)
    assert packed.panels.shape == (2, 32, 32)
    nibbles = torch.cat((packed.panels & 15, packed.panels >> 4), 2)  # [P, K/2, (output, pair)]
    q_NK = nibbles.view(2, 32, 32, 2).transpose(1, 2).reshape(64, 64)
    assert torch.equal(q_NK[:40], quantized.q_NK)
    assert packed.scale_N is not None
    assert packed.scale_N.shape == (2, 2, 2, 32)
    scale_NG, min_NG = packed.scale_N.permute(2, 0, 3, 1).reshape(2, 64, 2)
    assert torch.equal(scale_NG[:40], quantized.scale_NG)
    assert torch.equal(min_NG[:40], quantized.min_NG)
    assert not scale_NG[40:].any()
    assert not min_NG[40:].any()


def test_a_view_of_a_larger_tensor_is_packed_by_its_values() -> None:
    w_NK = torch.randn(64, 33)[::2, 1:]
    assert torch.equal(pack_panels(w_NK), pack_panels(w_NK.clone()))


def test_onednn_and_experts_count_their_bytes() -> None:
    w_NK = torch.randn(48, 16)
    reordered = reorder_onednn(w_NK)
    assert (reordered.num_outputs, reordered.nbytes) == (48, 48 * 16 * 4)
    experts = Experts(linears=(pack_linear(w_NK, None), reordered))
    assert experts.nbytes == 64 * 16 * 4 + 48 * 16 * 4

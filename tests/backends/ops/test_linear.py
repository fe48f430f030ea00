"""Products, and the int8 form."""

from __future__ import annotations

import pytest
import torch

from isoinfer.backends.ops import LINEAR, DenseWeight, bind_reference, quantize_int8
from isoinfer.backends.ops.linear import quantize_int4
from isoinfer.errors import UserError


def test_linear_equals_torchs() -> None:
    for sample in LINEAR.samples(torch.float64, 0):
        x, weight, bias = sample.args
        expected = torch.nn.functional.linear(x, weight.dense(torch.float64), bias)
        torch.testing.assert_close(bind_reference(LINEAR, sample.static)(x, weight, bias), expected)


def test_output_has_the_dtype_of_the_spec() -> None:
    for sample in LINEAR.samples(torch.bfloat16, 0):
        y = bind_reference(LINEAR, sample.static)(*sample.args)
        assert str(y.dtype) == f"torch.{sample.static.out_dtype}"


def test_int8_is_within_half_a_step_of_each_row() -> None:
    w = torch.randn(7, 40) * torch.logspace(-3, 3, 7)[:, None]
    weight = quantize_int8(w)
    step = w.abs().amax(dim=1, keepdim=True) / 127
    assert bool(((weight.dense(torch.float64) - w.double()).abs() <= 0.5001 * step.double()).all())
    assert weight.q_NK.dtype == torch.int8
    assert weight.q_NK.abs().amax(dim=1).tolist() == [127] * 7


def test_quantising_again_gives_the_same_integers() -> None:
    weight = quantize_int8(torch.randn(64, 128))
    assert torch.equal(quantize_int8(weight.dense(torch.float32)).q_NK, weight.q_NK)


def test_a_row_of_zeros_stays_zero() -> None:
    weight = quantize_int8(torch.zeros(2, 8))
    assert torch.equal(weight.dense(torch.float32), torch.zeros(2, 8))


def test_weights_count_their_bytes() -> None:
    assert DenseWeight(torch.zeros(3, 4, dtype=torch.bfloat16)).nbytes == 24
    assert quantize_int8(torch.ones(3, 4)).nbytes == 12 + 3 * 4


def test_int4_is_within_half_a_step_of_each_group() -> None:
    w = torch.randn(5, 96, generator=torch.Generator().manual_seed(0))
    weight = quantize_int4(w)
    groups = w.view(5, 3, 32)
    step = (groups.amax(2) - groups.amin(2)) / 15
    error = (weight.dense(torch.float64).view(5, 3, 32) - groups).abs().amax(2)
    assert bool((error <= 0.51 * step + 2e-3 * groups.abs().amax(2)).all())  # scale and minimum are float16
    assert (int(weight.q_NK.min()), int(weight.q_NK.max())) == (0, 15)


def test_quantising_int4_again_gives_the_same_integers() -> None:
    weight = next(s.args[1] for s in LINEAR.samples(torch.float32, 0) if s.static.quant == "int4")
    again = quantize_int4(weight.dense(torch.float32))
    assert torch.equal(again.q_NK, weight.q_NK)
    assert torch.equal(again.dense(torch.float32), weight.dense(torch.float32))


def test_int4_refuses_a_width_that_is_not_made_of_groups() -> None:
    with pytest.raises(UserError, match="multiple of 32 inputs, this model has one with 40"):
        quantize_int4(torch.zeros(2, 40))

"""RMS norm against torch's own, and the fused form against its two halves."""

from __future__ import annotations

import torch

from isoinfer.backends.ops import ADD_RMS_NORM, RMS_NORM, bind_reference


def test_rms_norm_equals_torchs_in_float64() -> None:
    for sample in RMS_NORM.samples(torch.float64, 0):
        x, weight = sample.args
        expected = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps=sample.static.eps)
        torch.testing.assert_close(bind_reference(RMS_NORM, sample.static)(x, weight), expected, rtol=1e-12, atol=1e-12)


def test_rms_norm_takes_heads_as_rows() -> None:
    sample = next(iter(RMS_NORM.samples(torch.float32, 0)))
    x = torch.randn(6, 64)
    norm = bind_reference(RMS_NORM, sample.static)
    rows = torch.stack([norm(row[None], sample.args[1])[0] for row in x])
    torch.testing.assert_close(norm(x, sample.args[1]), rows)


def test_bfloat16_rounds_once() -> None:
    for sample in RMS_NORM.samples(torch.bfloat16, 0):
        x, weight = sample.args
        wide = bind_reference(RMS_NORM, sample.static)(x.double(), weight.double())
        got = bind_reference(RMS_NORM, sample.static)(x, weight)
        assert got.dtype == torch.bfloat16
        assert (got == wide.bfloat16()).float().mean() > 0.98  # a float32 tie may round the other way


def test_add_rms_norm_updates_the_residual_first() -> None:
    for sample in ADD_RMS_NORM.samples(torch.bfloat16, 0):
        x, residual, weight = sample.args
        expected = x + residual
        normed = bind_reference(ADD_RMS_NORM, sample.static)(x, residual, weight)
        assert torch.equal(residual, expected)
        assert torch.equal(normed, bind_reference(RMS_NORM, sample.static)(expected, weight))

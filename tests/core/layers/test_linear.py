"""The linear layer passes weight, bias, quantisation and output dtype on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from isoinfer.layers.linear import Linear

Make = Callable[..., Any]


def test_with_and_without_bias(make_parts: Make, randn: Make) -> None:
    x, weight, bias = randn(3, 8), randn(5, 8), randn(5)
    parts = make_parts({"l": weight, "l_bias": bias})
    torch.testing.assert_close(Linear(parts, "l", in_features=8, out_features=5)(x), x @ weight.T)
    biased = Linear(parts, "l", in_features=8, out_features=5, bias=True)
    torch.testing.assert_close(biased(x), x @ weight.T + bias)


def test_spec(make_parts: Make, bound: Any, randn: Make) -> None:
    parts = dataclasses.replace(make_parts({"l": randn(5, 8)}), dtype="bfloat16", quant="int8")
    Linear(parts, "l", in_features=8, out_features=5)
    Linear(parts, "l", in_features=8, out_features=5, out_dtype="float32")
    (_, plain), (_, wide) = bound
    assert (plain.quant, plain.dtype, plain.out_dtype) == ("int8", "bfloat16", "bfloat16")
    assert (wide.dtype, wide.out_dtype) == ("bfloat16", "float32")

"""torch's own ops in the CPU's shapes: every kind of weight, and tiles that make rows independent."""

from __future__ import annotations

import pytest
import torch

from isoinfer.backends.cpu.torch_ops import WIDENED_OUTPUTS, make_embedding, make_linear
from isoinfer.backends.cpu.weights import reorder_onednn
from isoinfer.backends.ops import DenseWeight, EmbeddingSpec, LinearSpec, quantize_int4, quantize_int8


def spec(inputs: int, outputs: int, dtype: str = "float32", out_dtype: str = "float32") -> LinearSpec:
    return LinearSpec(in_features=inputs, out_features=outputs, bias=True, quant=None, dtype=dtype, out_dtype=out_dtype)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("rows", [1, 31, 33])
@pytest.mark.parametrize("kind", ["dense", "onednn", "int8", "int4"])
def test_every_kind_of_weight(kind: str, rows: int, deterministic: bool) -> None:
    w, x, bias = torch.randn(40, 64), torch.randn(rows, 64), torch.randn(40)
    weight = {"dense": DenseWeight, "onednn": reorder_onednn, "int8": quantize_int8, "int4": quantize_int4}[kind](w)
    dense = weight.dense(torch.float32) if kind in ("int8", "int4") else w
    for b in (bias, None):
        out = make_linear(spec(64, 40), deterministic)(x, weight, b)
        assert out.shape == (rows, 40)
        torch.testing.assert_close(out, x @ dense.T + (0 if b is None else b), rtol=1e-4, atol=1e-4)


def test_bfloat16_products_are_widened_in_parts() -> None:
    outputs = WIDENED_OUTPUTS + 5
    w, x = torch.randn(outputs, 16).bfloat16(), torch.randn(2, 16).bfloat16()
    out = make_linear(spec(16, outputs, "bfloat16"), False)(x, DenseWeight(w), None)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, x.float() @ w.float().T)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tiled_rows_have_the_same_bits_in_every_batch(dtype: str) -> None:
    w, x = (torch.randn(*shape).to(getattr(torch, dtype)) for shape in ((96, 128), (70, 128)))
    linear = make_linear(spec(128, 96, dtype, dtype), True)
    for weight in (DenseWeight(w), reorder_onednn(w)):
        alone = torch.cat([linear(x[row : row + 1], weight, None) for row in range(70)])
        for rows in (2, 7, 31, 32, 33, 64, 70):
            assert torch.equal(linear(x[:rows], weight, None), alone[:rows]), rows


def test_embedding_takes_rows() -> None:
    table = torch.randn(9, 4)
    embedding = make_embedding(EmbeddingSpec(vocab_size=9, hidden_size=4, dtype="float32"))
    assert torch.equal(embedding(torch.tensor([8, 0, 8], dtype=torch.int32), DenseWeight(table)), table[[8, 0, 8]])

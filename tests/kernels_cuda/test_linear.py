"""The matrix product with fixed tiles: configurations, and the bits of rows (one interpreted run, see conftest.py)."""

from __future__ import annotations

from dataclasses import fields

import pytest

from isoinfer.backends.ops import LinearSpec
from isoinfer.kernels_cuda import linear
from isoinfer.kernels_cuda.linear import LinearConfig, LinearDesc

DTYPES = ("bfloat16", "float16", "float32")
SIZES = ((16, 16), (576, 1536), (4096, 14336), (7168, 129280), (51, 33), (64, 50257), (64, 33), (100, 64))


@pytest.mark.parametrize("sm", [80, 86, 90, 100, 103, 120])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_are_listed_and_expect_what_the_chip_has(sm: int, dtype: str) -> None:
    listed = {case.key for case, _ in linear.cases(sm)}
    for inputs, outputs in SIZES:
        for out_dtype, bias in ((dtype, True), ("float32", False)):
            desc = LinearDesc(
                sm=sm, num_inputs=inputs, num_outputs=outputs, bias=bias, dtype=dtype, out_dtype=out_dtype
            )
            config, expected = linear.pick_config(desc), linear.expects(desc)
            assert linear.case(desc).key in listed
            assert inputs % config.input_unit == outputs % config.output_unit == 0
            tma = inputs % 16 == 0 and sm in (90, 100, 103) and dtype != "float32"
            assert config.tma == ("tma" in expected) == tma
            assert ("tcgen05" in expected) == (sm in (100, 103) and dtype != "float32")
            assert ("wgmma" in expected) == (sm == 90 and dtype != "float32")
            stage = (config.block_t + config.block_n) * config.block_k * 2
            assert config.num_stages * stage <= 99 << 10, "what the chips with the least shared memory have"


def test_a_configuration_knows_nothing_of_the_rows() -> None:
    assert {field.name for field in fields(LinearDesc)}.isdisjoint({"num_rows", "num_tokens"})
    assert {field.name for field in fields(LinearConfig)}.isdisjoint({"split_k", "num_splits"})


def test_quantised_weights_are_refused_in_words() -> None:
    spec = LinearSpec(in_features=64, out_features=64, bias=False, quant="int8", dtype="float16", out_dtype="float16")
    assert linear.refuse(spec) == "no int8 weights here yet"


def test_a_row_has_the_same_bits_alone_and_in_any_batch(bits: dict[str, list[str]]) -> None:
    assert bits["linear"] == []


def test_experts_made_of_it_have_the_same_bits_too(bits: dict[str, list[str]]) -> None:
    assert bits["moe_experts"] == []

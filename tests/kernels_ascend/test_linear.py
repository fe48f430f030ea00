"""The matrix product with fixed tiles: configurations, and the bits of rows (one interpreted run, see conftest.py)."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from isoinfer.backends.ascend.soc import SOCS, Soc
from isoinfer.backends.ops import LinearSpec
from isoinfer.kernels_ascend import linear
from isoinfer.kernels_ascend.linear import LinearDesc

SPEC = LinearSpec(in_features=64, out_features=64, bias=False, quant=None, dtype="float16", out_dtype="float16")


@pytest.mark.parametrize("soc", SOCS.values(), ids=lambda soc: soc.name)
@pytest.mark.parametrize("dtype", linear.DTYPES)
def test_tiles_are_whole_transfers_and_all_are_listed(soc: Soc, dtype: str) -> None:
    listed = {linear.case(desc).key for desc in linear.descriptions(soc)}
    for out_dtype in (dtype, "float32"):
        width = linear.width_of(soc, dtype, out_dtype)
        for num_outputs in (1, 64, 576, 4096, 14336, 129280):
            for bias in (False, True):
                desc = LinearDesc(
                    num_outputs=num_outputs,
                    cores=soc.cube_cores,
                    width=width,
                    bias=bias,
                    dtype=dtype,
                    out_dtype=out_dtype,
                )
                config = linear.pick_config(desc)
                assert config.block_k * (4 if dtype == "float32" else 2) == linear.DEPTH_BYTES
                assert config.block_n == (width if num_outputs >= 2 * soc.cube_cores * width else linear.NARROW)
                assert linear.case(desc).key in listed


def test_a_configuration_knows_nothing_of_the_rows() -> None:
    assert {field.name for field in fields(LinearDesc)} == {
        *("num_outputs", "cores", "width", "bias", "dtype", "out_dtype")
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"out_dtype": "float32"}, ""),
        ({"quant": "int8"}, "no int8 weights here yet"),
        ({"dtype": "float64"}, "dtype float64 is not one of"),
        ({"out_dtype": "bfloat16"}, "results are float16 or float32, not bfloat16"),
    ],
    ids=str,
)
def test_refusals(change: dict[str, str], reason: str) -> None:
    refusal = linear.refuse(replace(SPEC, **change))  # type: ignore[arg-type]
    assert refusal.startswith(reason) if reason else refusal == ""


def test_a_row_has_the_same_bits_alone_and_in_any_batch(bits: dict[str, list[str]]) -> None:
    assert bits["linear"] == []

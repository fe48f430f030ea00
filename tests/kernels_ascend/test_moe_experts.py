"""Experts on Ascend: tiles, and the bits of rows (one interpreted run, see conftest.py).

Its numbers: tests/gates/test_interpreted_ascend.py.
"""

from __future__ import annotations

from dataclasses import fields

import pytest

from isoinfer.backends.ascend.soc import SOCS, Soc
from isoinfer.kernels_ascend import linear, moe_experts
from isoinfer.kernels_ascend.moe_experts import ExpertsDesc


@pytest.mark.parametrize("soc", SOCS.values(), ids=lambda soc: soc.name)
def test_tiles_are_the_wide_ones_of_linear(soc: Soc) -> None:
    descs = list(moe_experts.descriptions(soc))
    assert {desc.dtype for desc in descs} == set(linear.DTYPES)
    for desc in descs:
        config = moe_experts.pick_config(desc)
        assert config.block_m == linear.BLOCK_M
        assert config.block_n == linear.width_of(soc, desc.dtype, desc.dtype)
        assert config.block_k * (4 if desc.dtype == "float32" else 2) == linear.DEPTH_BYTES


def test_a_configuration_knows_nothing_of_the_rows() -> None:
    assert {field.name for field in fields(ExpertsDesc)} == {"width", "bias", "dtype"}


def test_a_row_has_the_same_bits_alone_and_in_any_batch(bits: dict[str, list[str]]) -> None:
    assert bits["moe_experts"] == []

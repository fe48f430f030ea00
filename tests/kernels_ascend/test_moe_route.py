"""Choice of experts on Ascend: tiles and refusals. Its numbers: tests/gates/test_interpreted_ascend.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isoinfer.backends.ops import RouteSpec
from isoinfer.kernels_ascend import moe_route
from isoinfer.kernels_ascend.moe_route import RouteDesc

SPEC = RouteSpec(num_experts=8, top_k=2, kind="softmax_topk", renormalize=True, dtype="float32")


@pytest.mark.parametrize("dtype", moe_route.DTYPES)
def test_a_tile_holds_a_token_and_is_listed(dtype: str) -> None:
    listed = {moe_route.case(desc).key for desc in moe_route.descriptions()}
    for num_experts in (1, 8, 128, 129, 512, 2048):
        desc = RouteDesc(num_experts=num_experts, dtype=dtype)
        assert moe_route.pick_config(desc).block_e >= num_experts
        assert moe_route.case(desc).key in listed


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"num_experts": 2049}, "2049 experts are more than 2048"),
        ({"num_experts": 64, "top_k": 33}, "33 experts of a token are more than 32"),
        ({"dtype": "float64"}, "dtype float64 is not one of bfloat16, float16, float32"),
    ],
    ids=str,
)
def test_refusals(change: dict[str, object], reason: str) -> None:
    assert moe_route.refuse(replace(SPEC, **change)) == reason  # type: ignore[arg-type]


def test_its_rows_have_the_same_bits_in_any_batch(bits: dict[str, list[str]]) -> None:
    """With the experts, whose weights it makes."""
    assert bits["moe_experts"] == []

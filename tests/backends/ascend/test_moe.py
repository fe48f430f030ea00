"""What the mixture-of-experts operators are not asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isoinfer.backends.ascend.moe import refuse_experts, refuse_route
from isoinfer.backends.ops import MoeSpec, RouteSpec

EXPERTS = MoeSpec(
    num_experts=8,
    top_k=2,
    hidden_size=64,
    intermediate_size=32,
    activation="silu_mul",
    alpha=0.0,
    limit=0.0,
    bias=False,
    dtype="bfloat16",
)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"dtype": "float32"}, "float16 and bfloat16"),
        ({"bias": True}, "biases of experts"),
        ({"num_experts": 1}, "2 to 1024 groups"),
        ({"num_experts": 1025}, "2 to 1024 groups"),
        ({"intermediate_size": 32768}, "up to 65535"),
    ],
    ids=str,
)
def test_grouped_products(change: dict[str, Any], reason: str) -> None:
    refusal = refuse_experts(replace(EXPERTS, **change))
    assert (refusal == "") if reason == "" else (reason in refusal)


@pytest.mark.parametrize(("experts", "accepted"), [(2, False), (3, True), (2048, True), (2049, False)])
def test_gating(experts: int, accepted: bool) -> None:
    spec = RouteSpec(num_experts=experts, top_k=1, kind="softmax_topk", renormalize=True, dtype="float32")
    assert (refuse_route(spec) == "") is accepted

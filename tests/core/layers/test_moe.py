"""The sparse feed-forward against a loop over tokens and experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from isoinfer.backends.ops.moe import MoeSpec, RouteSpec
from isoinfer.layers.moe import Moe

NUM, TOP, HIDDEN, WIDE = 4, 2, 8, 6


def test_sum_of_the_chosen_experts(make_parts: Callable[..., Any], randn: Callable[..., Any], bound: Any) -> None:
    tensors = {"m.router": randn(NUM, HIDDEN), "m.w13": randn(NUM, 2 * WIDE, HIDDEN), "m.w2": randn(NUM, HIDDEN, WIDE)}
    route = RouteSpec(num_experts=NUM, top_k=TOP, kind="softmax_topk", renormalize=True, dtype="float32")
    experts = MoeSpec(
        num_experts=NUM,
        top_k=TOP,
        hidden_size=HIDDEN,
        intermediate_size=WIDE,
        activation="silu_mul",
        alpha=0.0,
        limit=0.0,
        bias=False,
        dtype="float32",
    )
    x_TH = randn(5, HIDDEN)
    out_TH = Moe(make_parts(tensors), "m", route=route, experts=experts)(x_TH)
    best = torch.softmax(x_TH @ tensors["m.router"].T, dim=-1).topk(TOP)
    for token, x in enumerate(x_TH):
        expected = torch.zeros(HIDDEN)
        for share, expert in zip(best.values[token] / best.values[token].sum(), best.indices[token], strict=True):
            gate, up = (tensors["m.w13"][expert] @ x).chunk(2)
            expected += share * (tensors["m.w2"][expert] @ (torch.nn.functional.silu(gate) * up))
        torch.testing.assert_close(out_TH[token], expected, atol=1e-5, rtol=1e-4)
    assert dict(bound)["linear"].out_dtype == "float32"

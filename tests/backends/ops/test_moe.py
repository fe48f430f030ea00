"""Routing and experts against explicit loops."""

from __future__ import annotations

import math

import torch

from isoinfer.backends.ops import MOE_EXPERTS, MOE_ROUTE, SILU_MUL, SWIGLU_CLIPPED, bind_reference
from isoinfer.backends.ops.activation import ActivationSpec, SwigluClippedSpec


def test_route_is_softmax_of_the_best() -> None:
    for sample in MOE_ROUTE.samples(torch.float64, 0):
        static = sample.static
        weights, ids = bind_reference(MOE_ROUTE, static)(*sample.args)
        for t, row in enumerate(sample.args[0].tolist()):
            best = sorted(range(len(row)), key=lambda e: (-row[e], e))[: static.top_k]
            assert ids[t].tolist() == best
            over = best if static.kind == "topk_softmax" else range(len(row))
            total = sum(math.exp(row[e]) for e in over)
            expected = [math.exp(row[e]) / total for e in best]
            if static.renormalize:
                expected = [w / sum(expected) for w in expected]
            torch.testing.assert_close(weights[t], torch.tensor(expected, dtype=torch.float64))


def test_route_returns_float32_and_int32() -> None:
    sample = next(iter(MOE_ROUTE.samples(torch.bfloat16, 0)))
    weights, ids = bind_reference(MOE_ROUTE, sample.static)(*sample.args)
    assert (weights.dtype, ids.dtype) == (torch.float32, torch.int32)


def test_equal_logits_take_the_lower_expert() -> None:
    sample = next(s for s in MOE_ROUTE.samples(torch.float32, 0) if s.label == "ties")
    _, ids = bind_reference(MOE_ROUTE, sample.static)(*sample.args)
    assert ids.tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]


def test_experts_are_the_weighted_sum_of_their_mlps() -> None:
    for sample in MOE_EXPERTS.samples(torch.float64, 0):
        static, (x, weights, ids, w13, w2, b13, b2) = sample.static, sample.args
        plain = bind_reference(SILU_MUL, ActivationSpec(intermediate_size=static.intermediate_size, dtype="float64"))
        clipped = SwigluClippedSpec(
            intermediate_size=static.intermediate_size, alpha=static.alpha, limit=static.limit, dtype="float64"
        )
        act = plain if static.activation == "silu_mul" else bind_reference(SWIGLU_CLIPPED, clipped)
        out = bind_reference(MOE_EXPERTS, static)(*sample.args)
        for t in range(len(x)):
            expected = torch.zeros(static.hidden_size, dtype=torch.float64)
            for weight, e in zip(weights[t].tolist(), ids[t].tolist(), strict=True):
                h = w13.tensor_NK[e] @ x[t] + (b13[e] if b13 is not None else 0)
                expected += weight * (w2.tensor_NK[e] @ act(h[None])[0] + (b2[e] if b2 is not None else 0))
            torch.testing.assert_close(out[t], expected)

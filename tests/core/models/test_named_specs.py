"""Named models against published totals: weights, active weights, KV of a token."""

from __future__ import annotations

import pytest

from isoinfer.models.named_specs import NAMED_MODELS

BILLION = 10**9


@pytest.fixture(params=NAMED_MODELS)
def name(request):
    return request.param


KV_BYTES = {
    "smollm2-135m": 2 * 30 * 3 * 64 * 2,
    "llama-3.1-8b": 131072,
    "qwen3-8b": 147456,
    "deepseek-v3": 70272,
    "deepseek-v4-flash": 3514.25,
    "deepseek-v4.1-flash": 890,
}
ACTIVE = {  # weights that a token multiplies with, without the embedding
    "smollm2-135m": 0.1345,
    "llama-3.1-8b": 8.03 - 0.525,
    "qwen3-8b": 8.19 - 0.622,
    "deepseek-v3": 37.0,
    "deepseek-v4-flash": 13.0,
    "deepseek-v4.1-flash": 15.6,
}
RESIDENT_BYTES = {  # published checkpoints, or weights times their width, as far as a device must hold them
    "smollm2-135m": 0.269,
    "llama-3.1-8b": 2 * (8.03 - 0.525),
    "qwen3-8b": 2 * (8.19 - 0.622),
    "deepseek-v3": 671,
    "deepseek-v4-flash": 154,
    "deepseek-v4.1-flash": 510.3 - 203.1 - 7.9,
}


def test_kv_of_a_token(name):
    model = NAMED_MODELS[name]()
    assert model.kv_bytes_per_token == KV_BYTES[name]
    laid_out = sum(
        2 * len(group.layers) * group.num_kv_heads * group.head_dim * {"bfloat16": 2}.get(group.dtype, 1)
        for group in model.spec.kv_specs
    )
    assert 0 <= laid_out - model.kv_bytes_per_token < 2


def test_weights(name):
    model = NAMED_MODELS[name]()
    assert model.spec.flops_per_token / 2 / BILLION == pytest.approx(ACTIVE[name], rel=0.01)
    assert model.resident_bytes / BILLION == pytest.approx(RESIDENT_BYTES[name], rel=0.02)
    assert model.spec.weight_bytes <= model.resident_bytes + 1e6


def test_published_sizes_of_v41():
    spec = NAMED_MODELS["deepseek-v4.1-flash"]().spec
    assert spec.expert_bytes == 40 * 384 * 18_800_640
    fixed, per_token = spec.maybe_kv_read
    assert fixed == pytest.approx(8.3e6, rel=0.01)
    assert fixed + per_token * 4096 == pytest.approx(8.3e6 + 1.8e6, rel=0.01)

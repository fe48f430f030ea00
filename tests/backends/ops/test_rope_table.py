"""Tables equal those that transformers makes, for each scaling kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from isoinfer.backends.ops.rope_table import RopeParams, attention_scaling, rope_table

HEAD_DIM = 64
CASES: dict[str, tuple[dict[str, Any], RopeParams]] = {
    "default": ({"rope_type": "default", "rope_theta": 1e5}, RopeParams(theta=1e5, rotary_dim=64)),
    "linear": (
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        RopeParams(theta=1e4, rotary_dim=64, kind="linear", factor=4.0),
    ),
    "dynamic": (
        {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
        RopeParams(theta=1e4, rotary_dim=64, kind="dynamic", factor=2.0, max_position=256),
    ),
    "yarn": (
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 128},
        RopeParams(theta=1e4, rotary_dim=64, kind="yarn", factor=8.0, original_max_position=128),
    ),
    "yarn-untruncated": (
        {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
        RopeParams(theta=150000.0, rotary_dim=64, kind="yarn", factor=32.0, original_max_position=4096, truncate=False),
    ),
    "yarn-mscale": (
        {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "mscale": 1.0,
            "mscale_all_dim": 0.7,
            "beta_fast": 24.0,
            "beta_slow": 2.0,
        },
        RopeParams(
            theta=1e4,
            rotary_dim=64,
            kind="yarn",
            factor=40.0,
            original_max_position=4096,
            mscale=1.0,
            mscale_all_dim=0.7,
            beta_fast=24.0,
            beta_slow=2.0,
        ),
    ),
    "yarn-attention-factor": (
        {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 8.0,
            "original_max_position_embeddings": 128,
            "attention_factor": 0.75,
        },
        RopeParams(theta=1e4, rotary_dim=64, kind="yarn", factor=8.0, original_max_position=128, attention_factor=0.75),
    ),
    "llama3": (
        {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
        RopeParams(
            theta=5e5,
            rotary_dim=64,
            kind="llama3",
            factor=8.0,
            original_max_position=128,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
        ),
    ),
}
ALL_CASES = pytest.mark.parametrize("case", CASES)


def _config(scaling: dict[str, Any], max_position: int = 256) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=max_position,
        rope_parameters=dict(scaling),
    )


@ALL_CASES
def test_table_is_what_transformers_rotates_with(case: str) -> None:
    scaling, params = CASES[case]
    rotary = LlamaRotaryEmbedding(_config(scaling))
    cos, sin = rotary(torch.zeros(1), torch.arange(200)[None])
    table = rope_table(params, 200)
    assert table.dtype == torch.float32
    assert torch.equal(table, torch.cat((cos[0, :, :32], sin[0, :, :32]), dim=-1))


@pytest.mark.parametrize("case", [name for name in CASES if name != "default"])
def test_attention_scaling_is_that_of_transformers(case: str) -> None:
    scaling, params = CASES[case]
    _, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](_config(scaling), torch.device("cpu"))
    assert attention_scaling(params) == factor


def test_dynamic_stretches_only_past_the_trained_context() -> None:
    scaling, params = CASES["dynamic"]
    plain = RopeParams(theta=1e4, rotary_dim=64)
    assert torch.equal(rope_table(params, 256), rope_table(plain, 256))
    inv_freq, _ = ROPE_INIT_FUNCTIONS["dynamic"](_config(scaling), torch.device("cpu"), seq_len=700)
    angle = torch.arange(700, dtype=torch.float32)[:, None] * inv_freq
    assert torch.equal(rope_table(params, 700), torch.cat((angle.cos(), angle.sin()), dim=-1))


def test_scaling_kinds_differ() -> None:
    tables = [rope_table(params, 300) for _, params in CASES.values()]
    assert all(not torch.equal(a, b) for i, a in enumerate(tables) for b in tables[:i])


def test_odd_rotary_dim_is_refused() -> None:
    with pytest.raises(AssertionError, match="even"):
        rope_table(RopeParams(theta=1e4, rotary_dim=63), 4)

"""Reading Hugging Face values: what is missing, null or impossible is named."""

from __future__ import annotations

from typing import Any

import pytest

from isoinfer.errors import CheckpointError
from isoinfer.models.hf_config import HfConfig, read_base, read_rope, read_windows

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}


@pytest.mark.parametrize("key", sorted(set(BASE) - {"architectures"}))
def test_a_missing_or_null_key_is_named(key: str) -> None:
    for config in ({k: v for k, v in BASE.items() if k != key}, {**BASE, key: None}):
        with pytest.raises(CheckpointError, match=rf"LlamaForCausalLM.*'{key}' is missing"):
            read_base(HfConfig(config))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", "64"),
        ("num_hidden_layers", 0),
        ("vocab_size", True),
        ("rms_norm_eps", "1e-5"),
        ("tie_word_embeddings", "yes"),
        ("hidden_act", "gelu"),
        ("head_dim", 4.5),
    ],
)
def test_an_impossible_value_is_named(key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"'{key}'"):
        read_base(HfConfig({**BASE, key: value}))


def test_heads_must_divide() -> None:
    with pytest.raises(CheckpointError, match="4 heads over 3 KV heads"):
        read_base(HfConfig({**BASE, "num_key_value_heads": 3}))


def test_defaults_of_head_dim_and_kv_heads() -> None:
    base = read_base(HfConfig({**BASE, "head_dim": None}))
    assert (base["head_dim"], base["num_kv_heads"], base["tie_word_embeddings"]) == (16, 4, False)
    assert read_base(HfConfig(BASE), head_dim=128)["head_dim"] == 128
    assert read_base(HfConfig({**BASE, "head_dim": 8}), head_dim=128)["head_dim"] == 8


def test_both_ways_to_write_rope_agree() -> None:
    new = HfConfig({**BASE, "rope_parameters": {**YARN, "rope_theta": 5e5}})
    old = HfConfig({**BASE, "rope_theta": 5e5, "rope_scaling": {**YARN, "type": "yarn"}})
    rope = read_rope(new, 16)
    assert rope == read_rope(old, 16)
    assert (rope.kind, rope.theta, rope.factor, rope.original_max_position) == ("yarn", 5e5, 4.0, 1024)
    assert (rope.beta_fast, rope.beta_slow, rope.truncate, rope.attention_factor) == (32.0, 1.0, True, None)


def test_plain_rope() -> None:
    rope = read_rope(HfConfig(BASE), 16, default_theta=123.0)
    assert (rope.kind, rope.theta, rope.rotary_dim, rope.max_position) == ("none", 123.0, 16, 4096)
    explicit = {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0, "partial_rotary_factor": 0.5}}
    rope = read_rope(HfConfig({**BASE, **explicit}), 16)
    assert (rope.kind, rope.theta, rope.rotary_dim) == ("none", 7.0, 8)


def test_yarn_without_factor_takes_the_ratio_of_lengths() -> None:
    scaling = {"rope_type": "yarn", "original_max_position_embeddings": 512, "mscale": 0.7}
    rope = read_rope(HfConfig({**BASE, "rope_scaling": scaling}), 16)
    assert (rope.factor, rope.mscale, rope.mscale_all_dim) == (8.0, 0.7, None)


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"rope_type": "longrope"}, "longrope.*linear"),
        ({"rope_type": "linear"}, "'factor' is missing"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}, "'high_freq_factor' is missing"),
        ({"rope_type": "linear", "factor": "two"}, "'factor' must be a number"),
        ({"full_attention": {"rope_type": "default"}}, "not supported"),
    ],
)
def test_impossible_rope_is_named(scaling: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        read_rope(HfConfig({**BASE, "rope_scaling": scaling}), 16)


def test_layer_types_win_over_the_default_pattern() -> None:
    types = ["full_attention", "sliding_attention"]
    assert read_windows(HfConfig({"layer_types": types}), 8, (True, False)) == (None, 8)
    assert read_windows(HfConfig({}), 8, (True, False)) == (8, None)


@pytest.mark.parametrize(
    ("types", "window"),
    [(["full_attention"], 8), (["full_attention", "chunked_attention"], 8), (["sliding_attention"] * 2, None)],
)
def test_impossible_layer_types_are_named(types: list[str], window: int | None) -> None:
    with pytest.raises(CheckpointError, match="'layer_types'"):
        read_windows(HfConfig({"layer_types": types}), window, (False, False))

"""Architecture names to models, and what an unknown one says."""

from __future__ import annotations

from typing import Any

import pytest

from isoinfer.errors import CheckpointError
from isoinfer.models.registry import MODELS, resolve


def test_the_architectures_of_version_one() -> None:
    assert set(MODELS) == {
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "GptOssForCausalLM",
    }


@pytest.mark.parametrize("config", [{}, {"architectures": None}, {"architectures": []}, {"architectures": ["Bert"]}])
def test_missing_or_unknown_architecture_lists_those_that_exist(config: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError) as caught:
        resolve(config)
    assert all(name in str(caught.value) for name in MODELS)
    assert "Bert" in str(caught.value) or "is missing" in str(caught.value)


def test_the_first_known_name_counts(tiny_config: dict[str, Any]) -> None:
    config = {**tiny_config, "architectures": ["Custom", "LlamaForCausalLM"]}
    assert resolve(config).config.architecture == "LlamaForCausalLM"


def test_text_config_is_read(tiny_config: dict[str, Any]) -> None:
    text = {key: value for key, value in tiny_config.items() if key != "architectures"}
    nested = {"architectures": tiny_config["architectures"], "text_config": text, "hidden_size": 1}
    assert resolve(nested).config == resolve(tiny_config).config

"""Llama's and Mistral's configs."""

from __future__ import annotations

from typing import Any

from isoinfer.models.llama import llama_from_hf, mistral_from_hf


def test_llama_biases(tiny_config: dict[str, Any]) -> None:
    plain = llama_from_hf(tiny_config)
    assert (plain.qkv_bias, plain.o_bias, plain.mlp_bias, plain.moe) == (False, False, False, None)
    biased = llama_from_hf({**tiny_config, "attention_bias": True, "mlp_bias": True})
    assert (biased.qkv_bias, biased.o_bias, biased.mlp_bias) == (True, True, True)


def test_llama_ignores_a_window(tiny_config: dict[str, Any]) -> None:
    assert llama_from_hf({**tiny_config, "sliding_window": 7}).windows == (None, None)


def test_mistral_window_in_all_layers_or_none(tiny_config: dict[str, Any]) -> None:
    assert mistral_from_hf({**tiny_config, "sliding_window": 7}).windows == (7, 7)
    assert mistral_from_hf({**tiny_config, "sliding_window": None}).windows == (None, None)

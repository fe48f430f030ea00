"""A tiny random Llama on disk with a tokenizer of characters, for tests of the whole engine."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
import torch
import transformers

from isoinfer.llm import LLM

TINY_VOCAB = 96


def write_tokenizer(path: Path) -> None:
    """One token for each printable character, and an end token that no text holds."""
    vocab = {"<unk>": 0, "</s>": 1} | {chr(32 + i): 2 + i for i in range(TINY_VOCAB - 2)}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [], unk_token="<unk>"))
    inner.decoder = tokenizers.decoders.Fuse()
    inner.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "unk_token": "<unk>"}))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A random two-layer Llama on disk (`path`), and transformers' own in memory (`oracle`)."""
    config = transformers.LlamaConfig(
        vocab_size=TINY_VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
    )
    config._attn_implementation = "eager"
    oracle = transformers.LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(11)
    for name, parameter in oracle.named_parameters():
        mean, std = (1.0, 0.2) if "norm" in name else (0.0, 0.15)
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * std + mean)
    path = tmp_path_factory.mktemp("tiny-llama")
    oracle.save_pretrained(path)
    write_tokenizer(path)
    return SimpleNamespace(path=str(path), oracle=oracle, vocab=TINY_VOCAB)


@pytest.fixture(scope="session")
def open_llm(tiny: SimpleNamespace) -> Any:
    """Opens the tiny model; the same settings give the same LLM again."""
    opened: dict[str, LLM] = {}

    def open_(**settings: Any) -> LLM:
        key = repr(sorted(settings.items()))
        if key not in opened:
            opened[key] = LLM(tiny.path, **{"dtype": "float32", "threads": 1, "max_model_len": 200, **settings})
        return opened[key]

    return open_

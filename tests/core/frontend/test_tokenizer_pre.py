"""Against the pre-tokenizers that published tokenizer.json files of these families hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from isoinfer.errors import CheckpointError
from isoinfer.frontend.tokenizer_pre import PRE_SPECS, pre_spec

TEXT = (
    "Hello  WORLD don't WE'RE I'Ll x's 12345 ½²४५ foo_bar=$x[12];\r\n\n  tab\t\u00a0 naïve e\u0301 "
    "日本語ひらがなカ 한국어 "
    "camelCaseWord HTTPServer ǅx ª /path//to\n#!? <|im_start|>🎉👩‍👩‍👧 «quoted» --- ...  end   "
)
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_GPT2 = {**_BYTES, "use_regex": True}
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
)


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


PUBLISHED: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [_GPT2],
    "smollm": [{"type": "Digits", "individual_digits": True}, _GPT2],
    "llama-bpe": [
        _split(rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"),
        _BYTES,
    ],
    "qwen2": [
        _split(rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_REST}"),
        _BYTES,
    ],
    "gpt-4o": [_split(_O200K), _BYTES],
    "deepseek-coder": [
        _split("[\r\n]"),
        _split(r"\s?\p{L}+"),
        _split(r"\s?\p{P}+"),
        _split("[一-龥ࠀ-一가-\ud7ff]+"),
        {"type": "Digits", "individual_digits": True},
        _BYTES,
    ],
}


def _published(steps: list[dict[str, Any]]) -> Any:
    backend = json.loads(Tokenizer(models.BPE()).to_str())
    backend["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    return Tokenizer.from_str(json.dumps(backend)).pre_tokenizer


@pytest.mark.parametrize("name", PUBLISHED)
def test_cuts_like_the_published_tokenizer(name: str) -> None:
    ours = pre_spec(name).pre_tokenizer().pre_tokenize_str(TEXT)
    assert [piece for piece, _ in ours] == [piece for piece, _ in _published(PUBLISHED[name]).pre_tokenize_str(TEXT)]


def test_the_ways_differ() -> None:
    cuts = {name: tuple(spec.pre_tokenizer().pre_tokenize_str(TEXT)) for name, spec in PRE_SPECS.items()}
    aliases = {"llama3", "llama-v3", "deepseek-r1-qwen"}
    assert len(set(cuts.values())) == len(PRE_SPECS) - len(aliases)


def test_default_cuts_numbers_in_threes_and_punctuation_apart() -> None:
    pieces = [piece for piece, _ in pre_spec("default").pre_tokenizer().pre_tokenize_str("a 12345 b$!c")]
    assert pieces == ["a", "Ġ", "123", "45", "Ġb", "$!", "c"]


def test_only_qwen_normalises() -> None:
    assert {name for name, spec in PRE_SPECS.items() if spec.normalizer()} == {"qwen2", "deepseek-r1-qwen"}


def test_unknown_way_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match=r"unknown way 'tekken' \(tokenizer\.ggml\.pre\).*smollm"):
        pre_spec("tekken")

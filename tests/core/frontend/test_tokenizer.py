from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from isoinfer.frontend.tokenizer import Tokenizer
from isoinfer.frontend.tokenizer_parts import TokenizerParts, add_around


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "Hello, world!",
        "  a  b ",
        "日本語 한국어",
        "🎉👩‍👩‍👧‍👦🇫🇷",
        "1234567890",
        "e\u0301\t\r\n\n\n x",
        "\x00\ufffd\U0010ffff",
    ],
)
def test_round_trip(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text, add_special_tokens=False)
    assert byte_level.decode(ids) == text
    assert b"".join(map(byte_level.token_bytes, ids)) == text.encode()


def test_special_tokens_in_text_become_ids(byte_level: Any) -> None:
    ids = byte_level.encode("<|user|>hi</s>")
    assert [ids[0], ids[1], ids[-1]] == [byte_level.id("<s>"), byte_level.id("<|user|>"), byte_level.id("</s>")]
    assert byte_level.decode(ids) == "hi"
    assert byte_level.decode(ids, skip_special_tokens=False) == "<s><|user|>hi</s>"
    assert {ids[0], ids[1], ids[-1]} == byte_level.special_ids


def test_every_byte_of_the_alphabet(byte_level: Tokenizer) -> None:
    single = [byte_level.token_bytes(index) for index in range(byte_level.vocab_size)]
    assert {piece for piece in single if len(piece) == 1} == {bytes((byte,)) for byte in range(256)}


def test_half_a_character(byte_level: Tokenizer) -> None:
    half = next(i for i in range(byte_level.vocab_size) if byte_level.token_bytes(i) == b"\xe3")
    assert byte_level.token_str(half) == "\ufffd"


def test_ids_beyond_the_vocabulary_have_no_text(byte_level: Tokenizer) -> None:
    beyond = byte_level.vocab_size + 5
    assert byte_level.decode([beyond]) == ""
    assert byte_level.token_bytes(beyond) == b""
    assert byte_level.token_str(beyond) == ""


def test_sentencepiece_pieces(sentencepiece: Any) -> None:
    assert sentencepiece.token_str(sentencepiece.id("▁hello")) == " hello"
    assert sentencepiece.token_bytes(sentencepiece.id("<0xE2>")) == b"\xe2"
    assert sentencepiece.token_bytes(sentencepiece.id("</s>")) == b"</s>"


def test_maps_are_copies() -> None:
    backend = Backend(models.BPE({"a": 0, "<s>": 1}, []))
    backend.add_special_tokens(["<s>"])
    add_around(backend, "<s>", None)
    parts = TokenizerParts(
        backend=backend, special_tokens={"bos_token": "<s>"}, eos_token_ids=(), chat_templates={"default": "x"}
    )
    tokenizer = Tokenizer(parts)
    tokenizer.special_tokens_map.clear()
    tokenizer.chat_templates.clear()
    assert (tokenizer.bos_token, tokenizer.chat_template) == ("<s>", "x")
    assert tokenizer.encode("a") == [1, 0]

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.frontend.detokenizer import MAX_PENDING, REPLACEMENT, Detokenizer

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
some = settings(max_examples=150, deadline=None)
IDS = st.lists(st.integers(0, 419), max_size=40)
INVALID_BYTES = [0xFF, 0xE2, 0x80, 0xF0, 0x9F, 0xC3, 0xAF]


def run(detokenizer: Detokenizer, ids: list[int], sizes: list[int]) -> list[str]:
    """The deltas for ids pushed in chunks of the given sizes (cycled), and the flush."""
    deltas, rest = [], list(ids)
    for size in itertools.cycle(sizes):
        if not rest:
            break
        deltas.append(detokenizer.push(rest[:size]))
        rest = rest[size:]
    return [*deltas, detokenizer.flush()]


chunk_sizes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@some
@given(text=texts, sizes=chunk_sizes)
def test_the_deltas_of_any_text_join_to_the_text(byte_level, text, sizes):
    ids = byte_level.encode(text, add_special_tokens=False)
    assert "".join(run(Detokenizer(byte_level), ids, sizes)) == byte_level.decode(ids) == text


@some
@given(ids=IDS, sizes=chunk_sizes, skip=st.booleans())
def test_byte_level_equals_decode_for_any_tokens_and_split(byte_level, ids, sizes, skip):
    detokenizer = Detokenizer(byte_level, [], skip)
    assert "".join(run(detokenizer, ids, sizes)) == byte_level.decode(ids, skip_special_tokens=skip)


@some
@given(raw=st.lists(st.sampled_from(INVALID_BYTES + list("é€😀".encode())), max_size=60))
def test_byte_level_equals_decode_for_long_invalid_bytes(byte_level, raw):
    ids = byte_tokens(byte_level, bytes(raw))
    assert "".join(run(Detokenizer(byte_level), ids, [1])) == bytes(raw).decode(errors="replace")


@some
@given(prompt=texts, ids=IDS, sizes=chunk_sizes)
def test_the_prompt_is_context_and_not_output(byte_level, prompt, ids, sizes):
    before = byte_level.encode(prompt)
    got = "".join(run(Detokenizer(byte_level, before), ids, sizes))
    assert got == byte_level.decode(before + ids)[len(byte_level.decode(before)) :]


@some
@given(text=texts)
def test_what_is_out_is_never_half_a_character_nor_taken_back(byte_level, text):
    ids = byte_tokens(byte_level, text.encode())
    detokenizer, out = Detokenizer(byte_level), ""
    for num_bytes, token in enumerate(ids, start=1):
        out += detokenizer.push([token])
        complete = text.encode()[:num_bytes].decode(errors="ignore")
        # U+FFFD itself looks like half a character until something follows it.
        assert out.rstrip(REPLACEMENT) == complete.rstrip(REPLACEMENT)


@some
@given(text=texts, sizes=chunk_sizes, prompt=st.sampled_from(["", "hello", "wow é", "日本語"]))
def test_sentencepiece_keeps_spaces_and_byte_tokens(sentencepiece, text, sizes, prompt):
    before = sentencepiece.encode(prompt, add_special_tokens=False) if prompt else []
    ids = sentencepiece.encode(text, add_special_tokens=False)
    got = "".join(run(Detokenizer(sentencepiece, before), ids, sizes))
    assert got == sentencepiece.decode(before + ids)[len(sentencepiece.decode(before)) :]


@some
@given(data=st.data())
def test_sentencepiece_equals_decode_for_any_tokens_of_valid_bytes(sentencepiece, data):
    whole = st.integers(260, sentencepiece.vocab_size - 1).map(lambda i: [i])
    character = st.characters(exclude_categories=["Cs"], exclude_characters=REPLACEMENT)
    in_bytes = character.map(lambda c: [sentencepiece.id(f"<0x{b:02X}>") for b in c.encode()])
    special = st.just([sentencepiece.id("</s>")])
    ids = list(itertools.chain.from_iterable(data.draw(st.lists(whole | in_bytes | special, max_size=40))))
    got = "".join(run(Detokenizer(sentencepiece), ids, data.draw(chunk_sizes)))
    assert got == sentencepiece.decode(ids)


def test_a_streamed_space_survives_special_and_unknown_ids(sentencepiece):
    hello, eos, unknown = sentencepiece.id("▁hello"), sentencepiece.id("</s>"), sentencepiece.vocab_size + 3
    ids = [hello, *[eos] * 40, hello, *[unknown] * 40, hello]
    detokenizer = Detokenizer(sentencepiece, [sentencepiece.id("<s>")])
    assert [d for d in (detokenizer.push([i]) for i in ids) if d] == ["hello", " hello", " hello"]


def test_valid_text_is_not_taken_back_when_invalid_bytes_follow(sentencepiece):
    euro, invalid = "€".encode(), b"\xff"
    ids = [sentencepiece.id(f"<0x{b:02X}>") for b in euro + invalid]
    deltas = run(Detokenizer(sentencepiece), ids, [1])
    assert deltas == ["", "", "€", "", REPLACEMENT]


def test_an_incomplete_end_is_flushed_as_replacement(byte_level):
    detokenizer = Detokenizer(byte_level)
    assert detokenizer.push(byte_tokens(byte_level, "a😀".encode()[:-1])) == "a"
    assert detokenizer.flush() == REPLACEMENT


def test_a_character_that_the_prompt_began_is_given_whole(byte_level):
    first, *rest = byte_tokens(byte_level, "€".encode())
    assert "".join(run(Detokenizer(byte_level, [*byte_level.encode("ab "), first]), rest, [1])) == "€"


def test_byte_tokens_go_on_after_a_long_prompt_of_byte_tokens(sentencepiece):
    prompt = sentencepiece.encode("日本語日本語", add_special_tokens=False)
    more = [sentencepiece.id(f"<0x{b:02X}>") for b in "é".encode()]
    assert run(Detokenizer(sentencepiece, prompt), more, [1]) == ["", "é", ""]


def test_no_tokens_give_no_text(byte_level):
    detokenizer = Detokenizer(byte_level, byte_tokens(byte_level, b"ab\xe2"))
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("raw", [b"abcdefgh" * 250, b"\xff\xe2" * 1000, "é😀".encode() * 300])
def test_the_cost_per_token_does_not_grow(byte_level, raw):
    ids = byte_tokens(byte_level, raw)
    detokenizer = Detokenizer(byte_level, byte_tokens(byte_level, b"x" * 5000))
    before = byte_level.num_decoded
    run(detokenizer, ids, [1])
    assert byte_level.num_decoded - before < 5 * MAX_PENDING * len(ids)


def byte_tokens(tokenizer, raw: bytes) -> list[int]:
    """One token per byte. (GPT-2's alphabet: what is not printable is shifted past 255.)"""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = {b: 256 + i for i, b in enumerate(b for b in range(256) if b not in printable)}
    return [tokenizer.id(chr(shifted.get(b, b))) for b in raw]

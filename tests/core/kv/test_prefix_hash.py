"""Names of blocks: equal exactly where key, block size and all tokens up to the block are equal."""

from __future__ import annotations

import struct
from hashlib import sha256

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from isoinfer.kv.prefix_hash import HashChain, extra_key, packed_tokens

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=24).map(lambda tokens: np.array(tokens, dtype=np.int32))
TEXT = st.none() | st.text(alphabet=st.characters(categories=("L", "N", "Cc", "Cs")), max_size=6)


def names_of(tokens_L: np.ndarray, block_size: int, key: bytes = b"") -> list[bytes]:
    return list(HashChain(block_size=block_size, key=key).walk(tokens_L, tokens_L.size // block_size))


def test_the_format_is_what_the_file_says() -> None:
    header = b"".join(
        struct.pack("<Q", len(field)) + field for field in (b"isoinfer.kv.prefix", struct.pack("<II", 1, 2), b"key")
    )
    root = sha256(header).digest()
    first = sha256(root + struct.pack("<II", 1, 2**31 - 1)).digest()
    second = sha256(first + struct.pack("<II", 0, 7)).digest()
    assert names_of(np.array([1, 2**31 - 1, 0, 7, 9], dtype=np.int32), 2, b"key") == [first, second]


@given(st.tuples(TEXT, TEXT), st.tuples(TEXT, TEXT))
@example((None, None), ("", None))
@example(("", None), (None, ""))
@example(("a", "b"), ("ab", ""))
@example(("a", None), (None, "a"))
@example(("\ud800", None), ("?", None))
def test_extra_keys_are_equal_only_if_salt_and_adapter_are(
    one: tuple[str | None, str | None], two: tuple[str | None, str | None]
) -> None:
    assert (extra_key(*one) == extra_key(*two)) == (one == two)


def test_a_text_cannot_pretend_to_be_other_fields() -> None:
    """A salt that spells the adapter's frame gives another key than that adapter, and so do its parts."""
    whole = extra_key("x", "y")
    inside = whole[whole.index(b"x") :].decode("utf-8")
    assert extra_key(inside, None) != whole
    assert extra_key("x" + inside[1:], None) != whole
    assert extra_key(None, None) == b""


@given(
    TOKENS, TOKENS, st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.binary(max_size=3), st.binary(max_size=3)
)
def test_names_are_equal_exactly_as_far_as_everything_is(
    one: np.ndarray, two: np.ndarray, one_size: int, two_size: int, one_key: bytes, two_key: bytes
) -> None:
    same = one_size == two_size and one_key == two_key
    first, second = names_of(one, one_size, one_key), names_of(two, two_size, two_key)
    for place, (a, b) in enumerate(zip(first, second, strict=False)):
        end = (place + 1) * one_size
        assert (a == b) == (same and one[:end].tolist() == two[:end].tolist())
    assert len({*first, *second}) == len(set(first)) + len(set(second)) - len(set(first) & set(second))
    assert len(set(first)) == len(first), "the same tokens at another place have another name"


@given(TOKENS, st.sampled_from([1, 2, 4]), st.lists(st.integers(0, 24), max_size=4), st.integers(0, 24))
def test_a_chain_grows_in_any_steps_and_goes_on_from_known_names(
    tokens_L: np.ndarray, block_size: int, steps: list[int], known: int
) -> None:
    names, most = names_of(tokens_L, block_size), tokens_L.size // block_size
    chain = HashChain(block_size=block_size, key=b"", names=names[:known])
    for step in steps:
        chain.extend(tokens_L, min(step, most))
        assert chain.names == names[: len(chain.names)]
        assert list(chain.walk(tokens_L, min(step, most))) == names[: min(step, most)]
    chain.extend(tokens_L, most)
    assert chain.names == names


def test_a_walk_hashes_only_what_it_reaches() -> None:
    chain = HashChain(block_size=1, key=b"")
    walk = chain.walk(np.arange(9, dtype=np.int32), 9)
    next(walk)
    next(walk)
    assert len(chain.names) == 2


def test_packing_takes_any_view() -> None:
    tokens_L = np.arange(6, dtype=np.int32)[::2]
    assert packed_tokens(tokens_L) == struct.pack("<III", 0, 2, 4)
    assert packed_tokens(tokens_L.astype(">i4")) == struct.pack("<III", 0, 2, 4)

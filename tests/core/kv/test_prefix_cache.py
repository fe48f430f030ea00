from __future__ import annotations

import pytest

from isoinfer.kv.prefix_cache import PrefixCache


def test_the_first_block_keeps_the_name() -> None:
    cache = PrefixCache(keep_tokens=False)
    assert cache.publish(b"name", 3, b"")
    assert not cache.publish(b"name", 4, b"")
    assert b"name" in cache
    assert cache[b"name"] == 3
    assert cache.published() == {3: b"name"}
    cache.check()


def test_forgotten_blocks_and_unpublished_ones_have_no_name() -> None:
    cache = PrefixCache(keep_tokens=True)
    cache.publish(b"name", 3, b"tokens")
    cache.forget([9, 3, 3])
    assert b"name" not in cache
    assert cache.publish(b"name", 4, b"tokens")
    assert cache.publish(b"other", 3, b"more")
    cache.check()


def test_a_block_has_one_name() -> None:
    cache = PrefixCache(keep_tokens=False)
    cache.publish(b"name", 3, b"")
    with pytest.raises(AssertionError, match="block 3 is published under another name"):
        cache.publish(b"other", 3, b"")


def test_tokens_are_compared_where_they_are_kept() -> None:
    cache = PrefixCache(keep_tokens=True)
    cache.publish(b"name", 3, b"tokens")
    cache.verify(b"name", b"tokens")
    with pytest.raises(AssertionError, match="block 3 was published for other tokens"):
        cache.verify(b"name", b"others")
    cache.forget([3])
    assert cache._tokens_of == {}
    plain = PrefixCache(keep_tokens=False)
    plain.publish(b"name", 3, b"tokens")
    plain.verify(b"name", b"others")


def test_check_sees_names_and_blocks_that_differ() -> None:
    cache = PrefixCache(keep_tokens=False)
    cache.publish(b"name", 3, b"")
    cache._block_of[b"other"] = 3
    with pytest.raises(AssertionError, match="name"):
        cache.check()

"""What the manager promises about cached prefixes and windows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isoinfer.kv.group_blocks import KVGroup
from isoinfer.kv.manager import KVStats
from isoinfer.kv.prefix_hash import extra_key

NOW = -1  # a fence that has settled


def test_a_hit_is_whole_blocks_and_leaves_a_token_to_compute(make_kv: Any) -> None:
    kv = make_kv()
    kv.cache(15)
    assert [kv.found(length) for length in (1, 4, 5, 8, 9, 12, 13, 20)] == [0, 0, 4, 4, 8, 8, 12, 12]
    other_L = make_kv.tokens_L.copy()
    other_L[5] += 1
    assert kv.found(20, other_L) == 4
    assert kv.found(20, make_kv.tokens_L[1:]) == 0


def test_shared_blocks_are_used_and_what_follows_gets_new_ones(make_kv: Any) -> None:
    kv = make_kv()
    kv.start(0, 10)
    kv.confirm(0, 10)
    assert kv.start(1, 10) == 8
    assert kv.table(0)[:2] == kv.table(1)[:2]
    assert kv.table(0)[2] != kv.table(1)[2]
    assert kv.num_free(0) == 8 - 4
    kv.check()


def test_keys_separate_what_is_shared(make_kv: Any) -> None:
    kv = make_kv()
    kv.cache(8, key=extra_key("salt", None))
    assert kv.found(9, key=extra_key("salt", None)) == 8
    assert kv.found(9) == 0
    assert kv.found(9, key=extra_key(None, "salt")) == 0


def test_nothing_is_published_before_it_has_settled(make_kv: Any) -> None:
    """Blocks of a request that was removed before its step was known to be good must not be found (T21)."""
    kv = make_kv()
    kv.start(0, 16)
    assert kv.found(16) == 0
    kv.confirm(0, 7)
    assert kv.found(16) == 4
    kv.release(0, NOW)
    assert kv.found(16) == 4
    assert kv.num_free(0) == 8


def test_live_tokens_are_read_when_a_block_is_full(make_kv: Any) -> None:
    kv = make_kv()
    tokens_L = make_kv.tokens_L.copy()
    tokens_L[6:] = -1
    kv.start(0, 6, tokens_L)
    kv.confirm(0, 6)
    tokens_L[6:9] = make_kv.tokens_L[6:9]
    assert kv.extend(0, 9)
    kv.confirm(0, 8)
    assert kv.found(9) == 8


def test_the_first_of_two_equal_blocks_stays_and_the_second_is_free_when_it_goes(make_kv: Any) -> None:
    kv = make_kv()
    for slot in (0, 1):
        kv.admit(slot, make_kv.tokens_L, b"", None)
        assert kv.extend(slot, 8)
        kv.confirm(slot, 8)
    first = kv.table(0)
    kv.release(1, NOW)
    kv.release(0, NOW)
    assert kv.start(2, 9) == 8
    assert kv.table(2)[:2] == first
    kv.check()


def test_the_least_recently_used_goes_first_and_deeper_blocks_before_earlier_ones(make_kv: Any) -> None:
    kv = make_kv(num_blocks=9)
    other_L = make_kv.tokens_L + 1000
    kv.cache(16)
    kv.cache(16, other_L)
    assert kv.start(0, 9) == 8  # the first two blocks are used again
    kv.release(0, NOW)
    kv.admit(1, make_kv.tokens_L + 2000, b"", None)
    assert kv.extend(1, 4)  # the block that slot 0 had for its ninth token is free, or rather: one of 8
    evicted = kv.stats.evictions
    assert kv.extend(1, 8)
    assert kv.stats.evictions == evicted + 1
    assert [kv.found(17), kv.found(17, other_L)] == [8, 16]
    assert kv.extend(1, 12)
    assert [kv.found(17), kv.found(17, other_L)] == [8, 12]
    assert kv.extend(1, 24)
    assert [kv.found(17), kv.found(17, other_L)] == [8, 0]
    assert kv.extend(1, 28)
    assert [kv.found(17), kv.found(17, other_L)] == [4, 0]


def test_a_hit_that_was_evicted_meanwhile_is_cut(make_kv: Any) -> None:
    kv = make_kv(num_blocks=9)
    kv.cache(16)
    hit = kv.lookup(make_kv.tokens_L[:20], b"")
    assert hit.num_tokens == 16
    kv.admit(0, make_kv.tokens_L + 1000, b"", None)
    assert kv.extend(0, 24)
    assert kv.admit(1, make_kv.tokens_L, b"", hit) == 8
    kv.check()


def test_a_hit_of_another_key_is_a_programmer_error(make_kv: Any) -> None:
    kv = make_kv()
    hit = kv.lookup(make_kv.tokens_L, b"")
    with pytest.raises(AssertionError, match="another key"):
        kv.admit(0, make_kv.tokens_L, b"key", hit)
    with pytest.raises(AssertionError, match="another key"):
        kv.lookup(make_kv.tokens_L, b"key", hit)


def test_nothing_is_hashed_twice(make_kv: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kv = make_kv()
    kv.start(0, 16)
    kv.confirm(0, 16)
    hit = kv.lookup(make_kv.tokens_L[:21], b"")
    assert len(hit.names) == 5
    packed: list[int] = []
    monkeypatch.setattr(
        "isoinfer.kv.prefix_hash.packed_tokens", lambda tokens_L: packed.append(tokens_L.size) or tokens_L.tobytes()
    )
    assert kv.lookup(make_kv.tokens_L[:25], b"", hit).num_tokens == 16
    assert packed == []
    kv.admit(1, make_kv.tokens_L, b"", hit)
    assert kv.extend(1, 24)
    kv.confirm(1, 24)
    assert packed == [4]


def test_counts(make_kv: Any) -> None:
    kv = make_kv(num_blocks=9)
    kv.start(0, 13)
    kv.confirm(0, 13)
    kv.start(1, 20)
    kv.admit(2, make_kv.tokens_L, b"", None)  # a request that does not want cached tokens is not counted
    assert kv.stats == KVStats(queries=33, hits=12, evictions=0)
    kv.lookup(make_kv.tokens_L, b"")
    assert kv.stats.queries == 33


def test_evictions_of_all_groups_are_counted(make_kv: Any) -> None:
    kv = make_kv(num_blocks=5, window=9)
    kv.cache(8)
    kv.admit(0, make_kv.tokens_L + 1000, b"", None)
    assert kv.extend(0, 16)
    assert kv.stats.evictions == 4


def test_without_prefix_caching_nothing_is_kept(make_kv: Any) -> None:
    kv = make_kv(prefix_caching=False)
    kv.start(0, 16)
    kv.confirm(0, 16)
    kv.release(0, NOW)
    assert kv.found(16) == 0
    assert kv.lookup(make_kv.tokens_L, b"").names == ()
    kv.start(0, 32)
    assert kv.stats.evictions == 0


def test_tokens_of_a_hit_are_compared_in_debug_mode(make_kv: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isoinfer.kv.prefix_hash.sha256", lambda data: SimpleNamespace(digest=lambda: bytes(32)))
    kv = make_kv(verify_tokens=True)
    kv.start(0, 4)
    kv.confirm(0, 4)
    assert kv.found(5) == 4
    with pytest.raises(AssertionError, match="published for other tokens"):
        kv.lookup(make_kv.tokens_L[1:9], b"")


# windows


def test_a_window_group_holds_a_window_and_the_rest_stays_cached(make_kv: Any) -> None:
    kv = make_kv(num_blocks=9, window=6)
    kv.start(0, 16)
    kv.confirm(0, 16)
    assert [bool(block) for block in kv.table(0, 1)] == [False, False, True, True]
    assert all(kv.table(0, 0))
    assert [kv.found(length) for length in (5, 9, 13, 17)] == [4, 8, 12, 16]
    kv.check()


def test_a_hit_needs_of_a_window_group_only_what_the_window_touches(make_kv: Any) -> None:
    groups = [KVGroup(name="full", num_blocks=20), KVGroup(name="window", num_blocks=6, window=6)]
    kv = make_kv(groups=groups)
    kv.admit(0, make_kv.tokens_L, b"", None)
    for end in (8, 16, 24, 32):
        assert kv.extend(0, end)
        kv.confirm(0, end)
    kv.release(0, NOW)
    assert kv.num_free(1) == 5
    # its blocks of places 2, 4, 5, 6 and 7 are still cached
    assert [kv.found(length) for length in (5, 9, 13, 17, 21, 25, 29, 33)] == [0, 0, 0, 0, 0, 24, 28, 32]
    assert kv.start(1, 33) == 32
    assert [bool(block) for block in kv.table(1, 1)] == [False] * 6 + [True] * 3
    kv.check()


def test_window_blocks_of_a_step_in_flight_are_pending(make_kv: Any) -> None:
    """Blocks of a window must not be handed out while a submitted step may read them (T08)."""
    kv = make_kv(num_blocks=9, window=4)
    kv.start(0, 16)
    kv.confirm(0, 16, fence=5)
    assert (kv.num_pending(1), kv.num_free(1)) == (3, 4)
    kv.settled(4)
    assert kv.num_pending(1) == 3
    kv.settled(5)
    assert (kv.num_pending(1), kv.num_free(1)) == (0, 7)

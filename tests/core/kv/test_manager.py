"""What the manager promises, one thing a test; test_manager_machine.py uses it at random.

Some tests are named after faults of other engines that they would catch.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoinfer.kv.group_blocks import KVGroup
from isoinfer.kv.manager import KVManager, KVStats
from isoinfer.kv.prefix_hash import extra_key

TOKENS_L = np.arange(100, 164, dtype=np.int32)
NOW = -1  # a fence that has settled


def manager(num_blocks: int = 9, window: int | None = None, **settings: Any) -> KVManager:
    """Blocks of 4 tokens, four slots. With `window`, a second group of that window and as many blocks."""
    groups = [KVGroup(name="full", num_blocks=num_blocks)]
    if window is not None:
        groups.append(KVGroup(name="window", num_blocks=num_blocks, window=window))
    return KVManager(groups, **{"block_size": 4, "num_slots": 4, "max_tokens": 64, "step_tokens": 8, **settings})


def start(kv: KVManager, slot: int, num_tokens: int, tokens_L: Any = TOKENS_L, key: bytes = b"") -> int:
    """Admit with what is cached, and give blocks for `num_tokens`. Returns the tokens that were cached."""
    cached = kv.admit(slot, tokens_L, key, kv.lookup(tokens_L[:num_tokens], key))
    assert kv.extend(slot, num_tokens)
    return cached


def settle(kv: KVManager, slot: int, confirmed: int, fence: int = NOW) -> None:
    kv.settle(np.array([slot]), np.array([confirmed]), fence)


def cache(kv: KVManager, num_tokens: int, tokens_L: Any = TOKENS_L, key: bytes = b"") -> None:
    """Leave `num_tokens` cached and nothing else."""
    start(kv, 3, num_tokens, tokens_L, key)
    settle(kv, 3, num_tokens)
    kv.release(3, NOW)


def table(kv: KVManager, slot: int, group: int = 0) -> list[int]:
    return kv.tables(group, np.array([slot]))[0].tolist()


def found(kv: KVManager, num_tokens: int, tokens_L: Any = TOKENS_L, key: bytes = b"") -> int:
    return kv.lookup(tokens_L[:num_tokens], key).num_tokens


# blocks


def test_tables_are_copies_as_wide_as_the_widest_row() -> None:
    kv = manager()
    start(kv, 0, 9)
    start(kv, 1, 4)
    table_RB = kv.tables(0, np.array([1, 0, 1], dtype=np.int32))
    assert table_RB.dtype == np.int32
    assert (table_RB > 0).tolist() == [[True, False, False], [True, True, True], [True, False, False]]
    assert table_RB[0].tolist() == table_RB[2].tolist()
    table_RB[:] = -7
    assert min(table(kv, 0)) > 0
    assert kv.tables(0, np.array([2])).tolist() == [[0]]


def test_extend_is_all_groups_or_nothing() -> None:
    groups = [KVGroup(name="full", num_blocks=9), KVGroup(name="window", num_blocks=3, window=8)]
    kv = KVManager(groups, block_size=4, num_slots=2, max_tokens=64, step_tokens=4)
    kv.admit(0, TOKENS_L, b"", None)
    assert not kv.extend(0, 9)
    assert (kv.num_free(0), kv.num_free(1)) == (8, 2)
    assert kv.extend(0, 8)
    assert kv.extend(0, 3)
    assert kv.missing(np.array([0, 1]), np.array([9, 5])).tolist() == [2, 4]
    assert (kv.num_free(0), kv.num_free(1), kv.usage) == (6, 0, 1.0)


def test_use_of_an_empty_slot_or_of_more_than_the_table_holds_is_a_programmer_error() -> None:
    kv = manager()
    with pytest.raises(AssertionError, match="slot 0 is empty"):
        kv.extend(0, 1)
    kv.admit(0, TOKENS_L, b"", None)
    with pytest.raises(AssertionError, match="slot 0 is occupied"):
        kv.admit(0, TOKENS_L, b"", None)
    with pytest.raises(AssertionError, match="65"):
        kv.extend(0, 65)
    with pytest.raises(AssertionError, match="no blocks for what it has settled"):
        settle(kv, 0, 4)


# what fits


def test_a_request_that_can_never_fit_is_named_with_the_numbers() -> None:
    kv = manager(num_blocks=9)
    assert (kv.fits(32), kv.capacity) == ("", 32)
    assert kv.fits(33) == "33 tokens need 9 KV blocks of 4 tokens in group 'full', which has 8"
    assert manager(num_blocks=99).capacity == 64
    assert manager(num_blocks=99).fits(65) == "65 tokens are more than the 64 that one request may have"


def test_a_window_group_needs_only_a_window_and_a_step() -> None:
    def kv(num_blocks: int) -> KVManager:
        groups = [KVGroup(name="full", num_blocks=17), KVGroup(name="window", num_blocks=num_blocks, window=6)]
        return KVManager(groups, block_size=4, num_slots=2, max_tokens=64, step_tokens=8)

    # 5 tokens before a step of 8: 13 tokens, which may touch 4 blocks
    assert kv(5).fits(64) == ""
    assert kv(5).capacity == 64
    assert "need 4 KV blocks of 4 tokens in group 'window', which has 3" in kv(4).fits(64)
    assert kv(4).fits(12) == ""
    assert kv(4).capacity == 12


@given(
    block_size=st.sampled_from([1, 4, 16]),
    window=st.integers(1, 40),
    step_tokens=st.integers(1, 40),
    depth=st.integers(1, 3),
    num_tokens=st.integers(2, 130),
)
def test_what_fits_alone_is_served_chunk_by_chunk(
    block_size: int, window: int, step_tokens: int, depth: int, num_tokens: int
) -> None:
    """Prompts longer than the pool of a window group, with the smallest pool that is said to be enough."""
    for num_blocks in range(2, 200):
        groups = [KVGroup(name="full", num_blocks=132), KVGroup(name="w", num_blocks=num_blocks, window=window)]
        kv = KVManager(groups, block_size=block_size, num_slots=1, max_tokens=130, step_tokens=step_tokens)
        if not kv.fits(num_tokens):
            break
    kv.admit(0, np.zeros(num_tokens, dtype=np.int32), b"", None)
    ends, submitted, settled = [], 0, -1
    while settled < 0 or ends[settled] < num_tokens:
        reached = ends[-1] if ends else 0
        room = reached < num_tokens and submitted - settled - 1 < depth
        if room and kv.extend(0, min(num_tokens, reached + step_tokens)):
            ends.append(min(num_tokens, reached + step_tokens))
            submitted += 1
            continue
        settled += 1
        assert settled < submitted, "no step is in flight and there is no room for the next"
        kv.settle(np.array([0]), np.array([ends[settled]]), submitted - 1)
        kv.settled(settled)
        kv.check()


def test_room_is_counted_for_all_slots_together() -> None:
    kv = manager(num_blocks=9)
    start(kv, 0, 8)
    slots_R, upper_R = np.array([0, 1]), np.array([16, 15])
    assert kv.has_room(slots_R, upper_R, 0)
    assert kv.has_room(slots_R, np.array([4, 24]), 0)
    assert not kv.has_room(slots_R, np.array([4, 25]), 0), "what one slot has beyond its need helps no other"
    assert not kv.has_room(slots_R, upper_R, 1)
    kv.settled(2)
    kv.release(0, 3)
    assert not kv.has_room(slots_R, np.array([8, 20]), 0), "pending blocks are not free now"
    kv.settled(3)
    assert kv.has_room(slots_R, np.array([12, 20]), 0)


def test_room_in_a_window_group_is_at_most_a_window_and_a_step() -> None:
    groups = [KVGroup(name="full", num_blocks=40), KVGroup(name="window", num_blocks=9, window=6)]
    kv = KVManager(groups, block_size=4, num_slots=3, max_tokens=64, step_tokens=8)
    assert kv.has_room(np.array([0, 1]), np.array([64, 64]), 0)
    assert not kv.has_room(np.array([0, 1, 2]), np.array([64, 64, 1]), 0)
    kv.admit(0, TOKENS_L, b"", None)
    assert kv.extend(0, 8)
    settle(kv, 0, 8)
    assert kv.has_room(np.array([0, 1]), np.array([64, 64]), 0), "blocks that a slot has are not counted again"
    assert kv.extend(0, 16)
    settle(kv, 0, 16)
    assert (kv.num_free(1), table(kv, 0, 1)[:2]) == (6, [0, 0])
    assert kv.has_room(np.array([0, 1]), np.array([64, 64]), 0)
    assert kv.has_room(np.array([0, 1]), np.array([20, 64]), 1), "blocks that the window has passed are not needed"


def test_room_for_a_newcomer_counts_what_it_would_take_over() -> None:
    kv = manager(num_blocks=9)
    start(kv, 0, 24)
    settle(kv, 0, 24)
    hit = kv.lookup(TOKENS_L[:28], b"")
    assert hit.num_tokens == 24
    slots_R, upper_R = np.array([1]), np.array([32])
    assert not kv.has_room(slots_R, upper_R, 0)
    assert kv.has_room(slots_R, upper_R, 0, hit)
    assert not kv.has_room(slots_R, upper_R, 1, hit)
    kv.release(0, NOW)  # its blocks are cached now: free, but the newcomer would take them
    assert kv.has_room(slots_R, upper_R, 0, hit)
    assert not kv.has_room(slots_R, upper_R, 1, hit)


# prefix cache


def test_a_hit_is_whole_blocks_and_leaves_a_token_to_compute() -> None:
    kv = manager()
    cache(kv, 15)
    assert [found(kv, length) for length in (1, 4, 5, 8, 9, 12, 13, 20)] == [0, 0, 4, 4, 8, 8, 12, 12]
    other_L = TOKENS_L.copy()
    other_L[5] += 1
    assert found(kv, 20, other_L) == 4
    assert found(kv, 20, TOKENS_L[1:]) == 0


def test_shared_blocks_are_used_and_what_follows_gets_new_ones() -> None:
    kv = manager()
    start(kv, 0, 10)
    settle(kv, 0, 10)
    assert start(kv, 1, 10) == 8
    assert table(kv, 0)[:2] == table(kv, 1)[:2]
    assert table(kv, 0)[2] != table(kv, 1)[2]
    assert kv.num_free(0) == 8 - 4
    kv.check()


def test_keys_separate_what_is_shared() -> None:
    kv = manager()
    cache(kv, 8, key=extra_key("salt", None))
    assert found(kv, 9, key=extra_key("salt", None)) == 8
    assert found(kv, 9) == 0
    assert found(kv, 9, key=extra_key(None, "salt")) == 0


def test_nothing_is_published_before_it_has_settled() -> None:
    """Blocks of a request that was removed before its step was known to be good must not be found (T21)."""
    kv = manager()
    start(kv, 0, 16)
    assert found(kv, 16) == 0
    settle(kv, 0, 7)
    assert found(kv, 16) == 4
    kv.release(0, NOW)
    assert found(kv, 16) == 4
    assert kv.num_free(0) == 8


def test_live_tokens_are_read_when_a_block_is_full() -> None:
    kv = manager()
    tokens_L = TOKENS_L.copy()
    tokens_L[6:] = -1
    start(kv, 0, 6, tokens_L)
    settle(kv, 0, 6)
    tokens_L[6:9] = TOKENS_L[6:9]
    assert kv.extend(0, 9)
    settle(kv, 0, 8)
    assert found(kv, 9) == 8


def test_the_first_of_two_equal_blocks_stays_and_the_second_is_free_when_it_goes() -> None:
    kv = manager()
    for slot in (0, 1):
        kv.admit(slot, TOKENS_L, b"", None)
        assert kv.extend(slot, 8)
        settle(kv, slot, 8)
    first = table(kv, 0)
    kv.release(1, NOW)
    kv.release(0, NOW)
    assert start(kv, 2, 9) == 8
    assert table(kv, 2)[:2] == first
    kv.check()


def test_the_least_recently_used_goes_first_and_deeper_blocks_before_earlier_ones() -> None:
    kv = manager(num_blocks=9)
    other_L = TOKENS_L + 1000
    cache(kv, 16)
    cache(kv, 16, other_L)
    assert start(kv, 0, 9) == 8  # the first two blocks are used again
    kv.release(0, NOW)
    kv.admit(1, TOKENS_L + 2000, b"", None)
    assert kv.extend(1, 4)  # the block that slot 0 had for its ninth token is free, or rather: one of 8
    evicted = kv.stats.evictions
    assert kv.extend(1, 8)
    assert kv.stats.evictions == evicted + 1
    assert [found(kv, 17), found(kv, 17, other_L)] == [8, 16]
    assert kv.extend(1, 12)
    assert [found(kv, 17), found(kv, 17, other_L)] == [8, 12]
    assert kv.extend(1, 24)
    assert [found(kv, 17), found(kv, 17, other_L)] == [8, 0]
    assert kv.extend(1, 28)
    assert [found(kv, 17), found(kv, 17, other_L)] == [4, 0]


def test_a_hit_that_was_evicted_meanwhile_is_cut() -> None:
    kv = manager(num_blocks=9)
    cache(kv, 16)
    hit = kv.lookup(TOKENS_L[:20], b"")
    assert hit.num_tokens == 16
    kv.admit(0, TOKENS_L + 1000, b"", None)
    assert kv.extend(0, 24)
    assert kv.admit(1, TOKENS_L, b"", hit) == 8
    kv.check()


def test_a_hit_of_another_key_is_a_programmer_error() -> None:
    kv = manager()
    hit = kv.lookup(TOKENS_L, b"")
    with pytest.raises(AssertionError, match="another key"):
        kv.admit(0, TOKENS_L, b"key", hit)
    with pytest.raises(AssertionError, match="another key"):
        kv.lookup(TOKENS_L, b"key", hit)


def test_nothing_is_hashed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = manager()
    start(kv, 0, 16)
    settle(kv, 0, 16)
    hit = kv.lookup(TOKENS_L[:21], b"")
    assert len(hit.names) == 5
    packed: list[int] = []
    monkeypatch.setattr(
        "isoinfer.kv.prefix_hash.packed_tokens", lambda tokens_L: packed.append(tokens_L.size) or tokens_L.tobytes()
    )
    assert kv.lookup(TOKENS_L[:25], b"", hit).num_tokens == 16
    assert packed == []
    kv.admit(1, TOKENS_L, b"", hit)
    assert kv.extend(1, 24)
    settle(kv, 1, 24)
    assert packed == [4]


def test_counts() -> None:
    kv = manager(num_blocks=9)
    start(kv, 0, 13)
    settle(kv, 0, 13)
    start(kv, 1, 20)
    kv.admit(2, TOKENS_L, b"", None)  # a request that does not want cached tokens is not counted
    assert kv.stats == KVStats(queries=33, hits=12, evictions=0)
    kv.lookup(TOKENS_L, b"")
    assert kv.stats.queries == 33


def test_without_prefix_caching_nothing_is_kept() -> None:
    kv = manager(prefix_caching=False)
    start(kv, 0, 16)
    settle(kv, 0, 16)
    kv.release(0, NOW)
    assert found(kv, 16) == 0
    assert kv.lookup(TOKENS_L, b"").names == ()
    start(kv, 0, 32)
    assert kv.stats.evictions == 0


def test_tokens_of_a_hit_are_compared_in_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isoinfer.kv.prefix_hash.sha256", lambda data: SimpleNamespace(digest=lambda: bytes(32)))
    kv = manager(verify_tokens=True)
    start(kv, 0, 4)
    settle(kv, 0, 4)
    assert found(kv, 5) == 4
    with pytest.raises(AssertionError, match="published for other tokens"):
        kv.lookup(TOKENS_L[1:9], b"")


# windows


def test_a_window_group_holds_a_window_and_the_rest_stays_cached() -> None:
    kv = manager(num_blocks=9, window=6)
    start(kv, 0, 16)
    settle(kv, 0, 16)
    assert [bool(block) for block in table(kv, 0, 1)] == [False, False, True, True]
    assert all(table(kv, 0, 0))
    assert [found(kv, length) for length in (5, 9, 13, 17)] == [4, 8, 12, 16]
    kv.check()


def test_a_hit_needs_of_a_window_group_only_what_the_window_touches() -> None:
    groups = [KVGroup(name="full", num_blocks=20), KVGroup(name="window", num_blocks=6, window=6)]
    kv = KVManager(groups, block_size=4, num_slots=4, max_tokens=64, step_tokens=8)
    kv.admit(0, TOKENS_L, b"", None)
    for end in (8, 16, 24, 32):
        assert kv.extend(0, end)
        settle(kv, 0, end)
    kv.release(0, NOW)
    assert kv.num_free(1) == 5
    # its blocks of places 2, 4, 5, 6 and 7 are still cached
    assert [found(kv, length) for length in (5, 9, 13, 17, 21, 25, 29, 33)] == [0, 0, 0, 0, 0, 24, 28, 32]
    assert start(kv, 1, 33) == 32
    assert [bool(block) for block in table(kv, 1, 1)] == [False] * 6 + [True] * 3
    kv.check()


def test_window_blocks_of_a_step_in_flight_are_pending() -> None:
    """Blocks of a window must not be handed out while a submitted step may read them (T08)."""
    kv = manager(num_blocks=9, window=4)
    start(kv, 0, 16)
    settle(kv, 0, 16, fence=5)
    assert (kv.num_pending(1), kv.num_free(1)) == (3, 4)
    kv.settled(4)
    assert kv.num_pending(1) == 3
    kv.settled(5)
    assert (kv.num_pending(1), kv.num_free(1)) == (0, 7)


# release


def test_blocks_go_back_when_the_step_that_may_touch_them_has_settled() -> None:
    """A page that is freed while in flight must not be given away (H3, T07)."""
    kv = manager(num_blocks=5)
    kv.settled(6)
    start(kv, 0, 16)
    kv.release(0, 7)
    assert (kv.num_free(0), kv.num_pending(0), kv.usage) == (0, 4, 1.0)
    kv.admit(0, TOKENS_L, b"", None)
    assert not kv.extend(0, 1)
    kv.settled(7)
    assert (kv.num_free(0), kv.num_pending(0)) == (4, 0)
    assert kv.extend(0, 16)
    kv.release(0, 7)
    assert (kv.num_free(0), kv.usage) == (4, 0.0)


def test_a_slot_is_released_exactly_once() -> None:
    kv = manager()
    start(kv, 0, 4)
    kv.release(0, 3)
    with pytest.raises(AssertionError, match="slot 0 is released twice"):
        kv.release(0, 3)


@pytest.mark.parametrize("fences", [(4, 5), (5, 4), (5, 5), (NOW, 5), (5, NOW)])
def test_shared_blocks_stay_until_the_last_step_of_all_owners_has_settled(fences: Sequence[int]) -> None:
    """Two requests with one prefix give it back: once each, and it is free after both (T05)."""
    kv = manager()
    start(kv, 0, 8)
    settle(kv, 0, 8)
    start(kv, 1, 9)
    kv.settled(3)
    for slot, fence in enumerate(fences):
        kv.release(slot, fence)
        kv.check()
    kv.settled(4)
    kv.check()
    assert kv.num_pending(0) == (3 if fences[1] == 5 else 2)  # the third block is the second request's own
    kv.settled(5)
    assert (kv.num_free(0), kv.num_pending(0)) == (8, 0)


def test_pending_blocks_can_be_found_and_shared_again() -> None:
    kv = manager()
    start(kv, 0, 8)
    settle(kv, 0, 8)
    first = table(kv, 0)
    kv.release(0, 7)
    assert start(kv, 1, 9) == 8
    assert (table(kv, 1)[:2], kv.num_pending(0)) == (first, 0)
    kv.settled(7)
    assert kv.num_free(0) == 8 - 3
    kv.check()


def test_rejected_drafts_give_whole_blocks_back() -> None:
    kv = manager(window=5)
    start(kv, 0, 14)
    settle(kv, 0, 6)
    kv.truncate(0, 7, fence=2)
    assert [len(table(kv, 0, group)) for group in (0, 1)] == [2, 2]
    assert [kv.num_pending(group) for group in (0, 1)] == [2, 2]
    kv.truncate(0, 8, fence=2)
    assert kv.extend(0, 9)
    kv.settled(2)
    assert [kv.num_free(group) for group in (0, 1)] == [5, 5]
    kv.check()
    with pytest.raises(AssertionError, match="published blocks are final"):
        kv.truncate(0, 3, fence=2)


def test_what_is_freed_or_evicted_is_discarded_and_what_is_cached_is_not() -> None:
    discarded: list[tuple[int, int]] = []
    kv = manager(window=9, on_discard=lambda group, blocks: discarded.extend((group, block) for block in blocks))
    start(kv, 0, 9)
    settle(kv, 0, 9)
    cached = [(group, block) for group in (0, 1) for block in table(kv, 0, group)[:2]]
    unnamed = [(group, table(kv, 0, group)[2]) for group in (0, 1)]
    kv.release(0, 3)
    assert discarded == []
    kv.settled(3)
    assert discarded == unnamed
    kv.admit(0, TOKENS_L + 1000, b"", None)
    assert kv.extend(0, 32)
    assert sorted(discarded[2:]) == sorted(cached)


def test_check_sees_what_is_lost() -> None:
    kv = manager()
    start(kv, 0, 8)
    kv.check()
    kv._groups[0].table_SB[0, 1] = kv._groups[0].table_SB[0, 0]
    with pytest.raises(AssertionError, match="counted wrong"):
        kv.check()

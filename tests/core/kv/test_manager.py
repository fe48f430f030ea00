"""What the manager promises about blocks, room and release; test_prefix_caching.py has the rest, and
test_manager_machine.py uses it at random.

Some tests are named after faults of other engines that they would catch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoinfer.kv.group_blocks import KVGroup

NOW = -1  # a fence that has settled


# blocks


def test_tables_are_copies_as_wide_as_the_widest_row(make_kv: Any) -> None:
    kv = make_kv()
    kv.start(0, 9)
    kv.start(1, 4)
    table_RB = kv.tables(0, np.array([1, 0, 1], dtype=np.int32))
    assert table_RB.dtype == np.int32
    assert (table_RB > 0).tolist() == [[True, False, False], [True, True, True], [True, False, False]]
    assert table_RB[0].tolist() == table_RB[2].tolist()
    table_RB[:] = -7
    assert min(kv.table(0)) > 0
    assert kv.tables(0, np.array([2])).tolist() == [[0]]


def test_extend_is_all_groups_or_nothing(make_kv: Any) -> None:
    groups = [KVGroup(name="full", num_blocks=9), KVGroup(name="window", num_blocks=3, window=8)]
    kv = make_kv(groups=groups, step_tokens=4)
    kv.admit(0, make_kv.tokens_L, b"", None)
    assert not kv.extend(0, 9)
    assert (kv.num_free(0), kv.num_free(1)) == (8, 2)
    assert kv.extend(0, 8)
    assert kv.extend(0, 3)
    assert kv.missing(np.array([0, 1]), np.array([9, 5])).tolist() == [2, 4]
    assert (kv.num_free(0), kv.num_free(1), kv.usage) == (6, 0, 1.0)


def test_use_of_an_empty_slot_or_of_more_than_the_table_holds_is_a_programmer_error(make_kv: Any) -> None:
    kv = make_kv()
    with pytest.raises(AssertionError, match="slot 0 is empty"):
        kv.extend(0, 1)
    kv.admit(0, make_kv.tokens_L, b"", None)
    with pytest.raises(AssertionError, match="slot 0 is occupied"):
        kv.admit(0, make_kv.tokens_L, b"", None)
    with pytest.raises(AssertionError, match="65"):
        kv.extend(0, 65)
    with pytest.raises(AssertionError, match="no blocks for what it has settled"):
        kv.confirm(0, 4)


# what fits


def test_a_request_that_can_never_fit_is_named_with_the_numbers(make_kv: Any) -> None:
    kv = make_kv(num_blocks=9)
    assert (kv.fits(32), kv.capacity) == ("", 32)
    assert kv.fits(33) == "33 tokens need 9 KV blocks of 4 tokens in group 'full', which has 8"
    assert make_kv(num_blocks=99).capacity == 64
    assert make_kv(num_blocks=99).fits(65) == "65 tokens are more than the 64 that one request may have"


def test_a_window_group_needs_only_a_window_and_a_step(make_kv: Any) -> None:
    def kv(num_blocks: int) -> Any:
        groups = [KVGroup(name="full", num_blocks=17), KVGroup(name="window", num_blocks=num_blocks, window=6)]
        return make_kv(groups=groups)

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
    make_kv: Any, block_size: int, window: int, step_tokens: int, depth: int, num_tokens: int
) -> None:
    """Prompts longer than the pool of a window group, with the smallest pool that is said to be enough."""
    for num_blocks in range(2, 200):
        groups = [KVGroup(name="full", num_blocks=132), KVGroup(name="w", num_blocks=num_blocks, window=window)]
        kv = make_kv(groups=groups, block_size=block_size, num_slots=1, max_tokens=130, step_tokens=step_tokens)
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


def test_room_is_counted_for_all_slots_together(make_kv: Any) -> None:
    kv = make_kv(num_blocks=9)
    kv.start(0, 8)
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


def test_room_in_a_window_group_is_at_most_a_window_and_a_step(make_kv: Any) -> None:
    groups = [KVGroup(name="full", num_blocks=40), KVGroup(name="window", num_blocks=9, window=6)]
    kv = make_kv(groups=groups)
    assert kv.has_room(np.array([0, 1]), np.array([64, 64]), 0)
    assert not kv.has_room(np.array([0, 1, 2]), np.array([64, 64, 1]), 0)
    kv.admit(0, make_kv.tokens_L, b"", None)
    assert kv.extend(0, 8)
    kv.confirm(0, 8)
    assert kv.has_room(np.array([0, 1]), np.array([64, 64]), 0), "blocks that a slot has are not counted again"
    assert kv.extend(0, 16)
    kv.confirm(0, 16)
    assert (kv.num_free(1), kv.table(0, 1)[:2]) == (6, [0, 0])
    assert kv.has_room(np.array([0, 1]), np.array([64, 64]), 0)
    assert kv.has_room(np.array([0, 1]), np.array([20, 64]), 1), "blocks that the window has passed are not needed"


def test_room_for_a_newcomer_counts_what_it_would_take_over(make_kv: Any) -> None:
    kv = make_kv(num_blocks=9)
    kv.start(0, 24)
    kv.confirm(0, 24)
    hit = kv.lookup(make_kv.tokens_L[:28], b"")
    assert hit.num_tokens == 24
    slots_R, upper_R = np.array([1]), np.array([32])
    assert not kv.has_room(slots_R, upper_R, 0)
    assert kv.has_room(slots_R, upper_R, 0, hit)
    assert not kv.has_room(slots_R, upper_R, 1, hit)
    kv.release(0, NOW)  # its blocks are cached now: free, but the newcomer would take them
    assert kv.has_room(slots_R, upper_R, 0, hit)
    assert not kv.has_room(slots_R, upper_R, 1, hit)


def test_room_for_a_newcomer_in_a_window_group_begins_where_its_window_does(make_kv: Any) -> None:
    groups = [KVGroup(name="full", num_blocks=40), KVGroup(name="window", num_blocks=5, window=6)]
    kv = make_kv(groups=groups)
    kv.admit(0, make_kv.tokens_L, b"", None)
    for end in (8, 16, 24):
        assert kv.extend(0, end)
        kv.confirm(0, end)
    kv.release(0, NOW)
    hit = kv.lookup(make_kv.tokens_L[:28], b"")
    assert hit.num_tokens == 24
    # two blocks of the hit are in sight, and one is new
    assert kv.has_room(np.array([1]), np.array([28]), 1, hit)
    assert not kv.has_room(np.array([1]), np.array([28]), 2, hit)


# release


def test_blocks_go_back_when_the_step_that_may_touch_them_has_settled(make_kv: Any) -> None:
    """A page that is freed while in flight must not be given away (H3, T07)."""
    kv = make_kv(num_blocks=5)
    kv.settled(6)
    kv.start(0, 16)
    kv.release(0, 7)
    assert (kv.num_free(0), kv.num_pending(0), kv.usage) == (0, 4, 1.0)
    kv.admit(0, make_kv.tokens_L, b"", None)
    assert not kv.extend(0, 1)
    kv.settled(7)
    assert (kv.num_free(0), kv.num_pending(0)) == (4, 0)
    assert kv.extend(0, 16)
    kv.release(0, 7)
    assert (kv.num_free(0), kv.usage) == (4, 0.0)


def test_a_slot_is_released_exactly_once(make_kv: Any) -> None:
    kv = make_kv()
    kv.start(0, 4)
    kv.release(0, 3)
    with pytest.raises(AssertionError, match="slot 0 is released twice"):
        kv.release(0, 3)


@pytest.mark.parametrize("fences", [(4, 5), (5, 4), (5, 5), (NOW, 5), (5, NOW)])
def test_shared_blocks_stay_until_the_last_step_of_all_owners_has_settled(make_kv: Any, fences: Sequence[int]) -> None:
    """Two requests with one prefix give it back: once each, and it is free after both (T05)."""
    kv = make_kv()
    kv.start(0, 8)
    kv.confirm(0, 8)
    kv.start(1, 9)
    kv.settled(3)
    for slot, fence in enumerate(fences):
        kv.release(slot, fence)
        kv.check()
    kv.settled(4)
    kv.check()
    assert kv.num_pending(0) == (3 if fences[1] == 5 else 2)  # the third block is the second request's own
    kv.settled(5)
    assert (kv.num_free(0), kv.num_pending(0)) == (8, 0)


def test_pending_blocks_can_be_found_and_shared_again(make_kv: Any) -> None:
    kv = make_kv()
    kv.start(0, 8)
    kv.confirm(0, 8)
    first = kv.table(0)
    kv.release(0, 7)
    assert kv.start(1, 9) == 8
    assert (kv.table(1)[:2], kv.num_pending(0)) == (first, 0)
    kv.settled(7)
    assert kv.num_free(0) == 8 - 3
    kv.check()


def test_what_is_freed_or_evicted_is_discarded_and_what_is_cached_is_not(make_kv: Any) -> None:
    discarded: list[tuple[int, int]] = []
    kv = make_kv(window=9, on_discard=lambda group, blocks: discarded.extend((group, block) for block in blocks))
    kv.start(0, 9)
    kv.confirm(0, 9)
    cached = [(group, block) for group in (0, 1) for block in kv.table(0, group)[:2]]
    unnamed = [(group, kv.table(0, group)[2]) for group in (0, 1)]
    kv.release(0, 3)
    assert discarded == []
    kv.settled(3)
    assert discarded == unnamed
    kv.admit(0, make_kv.tokens_L + 1000, b"", None)
    assert kv.extend(0, 32)
    assert sorted(discarded[2:]) == sorted(cached)


def test_check_sees_what_is_lost(make_kv: Any) -> None:
    kv = make_kv()
    kv.start(0, 8)
    kv.check()
    kv._groups[0].table_SB[0, 1] = kv._groups[0].table_SB[0, 0]
    with pytest.raises(AssertionError, match="counted wrong"):
        kv.check()


def test_a_slot_with_rings_is_taken_again_only_when_its_step_has_settled(make_kv: Any) -> None:
    """A recycled slot must not be written by a step of the request before (H7, T07)."""
    kv = make_kv(num_rings=1)
    kv.start(0, 4)
    kv.release(0, 3)
    with pytest.raises(AssertionError, match="may still touch the rings of slot 0"):
        kv.admit(0, make_kv.tokens_L, b"", None)
    kv.settled(3)
    assert kv.admit(0, make_kv.tokens_L, b"", None) == 0
    kv.check()


def test_a_manager_without_blocks_has_nothing_to_cache(make_kv: Any) -> None:
    with pytest.raises(AssertionError, match="no blocks to cache"):
        make_kv.without_blocks(num_rings=1)

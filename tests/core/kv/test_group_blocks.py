"""One group's tables; the manager's random test uses them in every combination."""

from __future__ import annotations

import numpy as np
import pytest

from isoinfer.kv.group_blocks import GroupBlocks, KVGroup


def group_of(
    window: int | None, *, num_blocks: int = 9, block_size: int = 4, num_columns: int = 8, step_tokens: int = 4
) -> GroupBlocks:
    return GroupBlocks(
        KVGroup(name="g", num_blocks=num_blocks, window=window),
        block_size=block_size,
        num_slots=2,
        num_columns=num_columns,
        step_tokens=step_tokens,
        verify_tokens=False,
        on_discard=lambda blocks: None,
    )


@pytest.mark.parametrize(
    ("window", "step_tokens", "block_size", "expected"),
    [
        (None, 4, 4, 8),
        (1, 1, 4, 1),
        (1, 2, 4, 2),
        (2, 1, 4, 2),
        (4, 2, 4, 2),
        (4, 3, 4, 3),
        (5, 4, 1, 8),
        (99, 1, 4, 8),
    ],
)
def test_a_slot_needs_at_most_what_the_queries_of_a_step_see(
    window: int | None, step_tokens: int, block_size: int, expected: int
) -> None:
    group = group_of(window, step_tokens=step_tokens, block_size=block_size)
    assert group.most_held == expected
    if window is None or expected == 8:
        return
    spans = [
        (start + step_tokens - 1) // block_size - group.first_visible(start) + 1
        for start in range(window, 8 * block_size)
    ]
    assert max(spans) == expected


def test_blocks_go_when_no_later_query_can_see_them() -> None:
    group = group_of(6)
    group.extend(0, 0, 4)
    blocks = group.table_SB[0, :4].tolist()
    passed = [group.pass_window(np.array([0]), np.array([confirmed])) for confirmed in range(3, 15)]
    # after 9 tokens the next query, at position 9, sees positions 4 to 9: the first block of 4 has passed
    assert passed == [[]] * 6 + [blocks[:1]] + [[]] * 3 + [blocks[1:2]] + [[]]
    assert group.table_SB[0, :5].tolist() == [0, 0, *blocks[2:], 0]
    assert group.clear(0, 4) == blocks[2:]
    assert not group.table_SB.any()
    assert group.first_S.tolist() == [0, 0]


def test_a_group_without_window_keeps_all() -> None:
    group = group_of(None)
    group.extend(0, 0, 8)
    assert group.pass_window(np.array([0]), np.array([32])) == []
    assert group.first_visible(31) == 0


def test_places_of_several_slots_go_in_one_call() -> None:
    group = group_of(1)
    group.extend(0, 0, 2)
    group.extend(1, 0, 3)
    blocks = group.table_SB.copy()
    assert group.pass_window(np.array([1, 0]), np.array([9, 4])) == [blocks[1, 0], blocks[1, 1], blocks[0, 0]]


def test_check_sees_holes_and_unnamed_blocks() -> None:
    group = group_of(None)
    group.extend(0, 0, 2)
    group.check(np.array([2, 0]), [])
    with pytest.raises(AssertionError, match="holes"):
        group.check(np.array([3, 0]), [])
    group.pool.keep(int(group.table_SB[0, 0]))
    with pytest.raises(AssertionError, match="published blocks and kept blocks differ"):
        group.check(np.array([2, 0]), [])


def test_what_the_window_has_passed_cannot_be_published() -> None:
    group = group_of(1)
    group.extend(0, 0, 2)
    group.pass_window(np.array([0]), np.array([4]))
    with pytest.raises(AssertionError, match="before the window passes"):
        group.publish(0, 0, [b"name"], [b""])

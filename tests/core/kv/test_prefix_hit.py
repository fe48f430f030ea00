"""The longest hit over several groups; the manager's random test compares it with its definition as well."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoinfer.kv.group_blocks import GroupBlocks, KVGroup
from isoinfer.kv.prefix_hit import longest_hit

NAMES = [bytes([place]) for place in range(8)]


def group_with(places: set[int], window: int | None, block_size: int = 4) -> GroupBlocks:
    group = GroupBlocks(
        KVGroup(name="g", num_blocks=9, window=window),
        block_size=block_size,
        num_slots=1,
        num_columns=8,
        step_tokens=4,
        verify_tokens=False,
        on_discard=lambda blocks: None,
    )
    for place in places:
        group.cache.publish(NAMES[place], place + 1, b"")
    return group


@pytest.mark.parametrize(
    ("full", "windows", "expected"),
    [
        (range(8), [], 8),
        ({0, 1, 3}, [], 2),
        ({1, 2}, [], 0),
        (range(8), [({7}, 4)], 8),  # the query after 8 blocks sees 3 tokens of the last one
        (range(8), [({7}, 6)], 0),  # and with a window of 6, one token of the block before
        (range(8), [({6, 7}, 6)], 8),
        (range(8), [({2, 3, 7}, 6)], 4),
        (range(8), [({0, 5}, 5)], 6),
        (range(8), [({0, 5}, 6)], 1),  # at the start there is no block before
        (range(8), [(set(), 1)], 8),  # nothing before itself is seen
        (range(8), [({6, 7, 2, 1}, 6), ({7, 2}, 4)], 8),
        (range(8), [({6, 7, 2, 1}, 6), ({6, 2}, 4)], 3),
        (range(5), [({6, 7, 2, 1}, 6), ({7, 2}, 4)], 3),
    ],
)
def test_examples(full: set[int], windows: list[tuple[set[int], int]], expected: int) -> None:
    groups = [group_with(set(full), None), *(group_with(places, window) for places, window in windows)]
    assert longest_hit(groups, NAMES, 8) == expected
    assert longest_hit(groups[::-1], NAMES, 8) == expected


@given(
    st.lists(st.tuples(st.sets(st.integers(0, 7)), st.none() | st.integers(1, 20)), min_size=1, max_size=3),
    st.sampled_from([1, 4]),
    st.integers(0, 8),
)
def test_it_is_the_longest(parts: list[tuple[set[int], int | None]], block_size: int, limit: int) -> None:
    groups = [group_with(places, window, block_size) for places, window in parts]

    def possible(num: int) -> bool:
        needed = [range(g.first_visible(num * block_size), num) for g in groups]
        return all(set(places) <= have for places, (have, _) in zip(needed, parts, strict=True))

    assert longest_hit(groups, NAMES, limit) == max(num for num in range(limit + 1) if possible(num))

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isoinfer.frontend.stop_strings import StopMatch, StopStrings

letters = st.text("ab", max_size=12)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


def first_match(stops: list[str], text: str, floor: int) -> StopMatch | None:
    """By the definition: the first end at which some stop string is complete, the longest of those."""
    for end in range(floor + 1, len(text) + 1):
        found = [s for s in stops if text[floor:end].endswith(s)]
        if found:
            stop = max(found, key=len)
            return StopMatch(end - len(stop), end, stop)
    return None


@given(stops=stop_lists, text=letters, floor=st.integers(0, 5), cuts=st.lists(st.integers(1, 4), max_size=12))
def test_the_match_does_not_depend_on_how_the_text_arrives(stops, text, floor, cuts):
    checker, old, got = StopStrings(stops), 0, None
    for size in [*cuts, len(text)]:
        new = min(old + size, len(text))
        got = got or checker.find(text[:new], old, floor)
        old = new
    assert got == first_match(stops, text, floor)


@given(stops=stop_lists, text=letters, floor=st.integers(0, 5))
def test_the_held_end_is_the_longest_start_of_a_stop_string(stops, text, floor):
    held = StopStrings(stops).num_held(text, floor)
    lengths = [
        n for n in range(len(text[floor:]) + 1) if any(s[:n] == text[len(text) - n :] and n < len(s) for s in stops)
    ]
    assert held == max(lengths)


def test_the_match_that_is_complete_first_counts_though_another_begins_earlier():
    assert StopStrings(["aabb", "ab"]).find("aabb", 0) == StopMatch(1, 3, "ab")


def test_no_stop_strings_hold_and_find_nothing():
    stops = StopStrings([])
    assert not stops
    assert stops.find("abc", 0) is None
    assert stops.num_held("abc") == 0

"""The suffix index against a search by slices of lists; what a token costs does not grow with the text."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.speculation.suffix_index import SuffixIndex

TEXTS = st.one_of(*(st.lists(st.integers(0, size), max_size=60) for size in (0, 1, 2, 5)))


def by_hand(text: list[int], low: int, high: int, per_token: int, num: int, in_flight: int) -> list[int]:
    """What `propose` gives, from its definition."""
    for size in range(min(high, len(text)), low - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[len(text) - size :]:
                wanted = in_flight + (min(num, per_token * size) if per_token else num)
                grown = list(text)
                for place in range(end, end + wanted):
                    grown.append(grown[place])
                return grown[len(text) :]
    return []


@settings(max_examples=400, deadline=None)
@given(
    text=TEXTS,
    low=st.integers(1, 4),
    more=st.integers(0, 9),
    per_token=st.integers(0, 2),
    num=st.integers(1, 6),
    in_flight=st.integers(0, 7),
    data=st.data(),
)
def test_it_is_the_search_by_slices(
    text: list[int], low: int, more: int, per_token: int, num: int, in_flight: int, data: st.DataObject
) -> None:
    index = SuffixIndex(min_match=low, max_match=low + more, drafts_per_token=per_token)
    done = 0
    while done < len(text):
        step = data.draw(st.integers(1, 9))
        index.append(text[done : done + step])
        done = min(len(text), done + step)
        assert len(index) == done
        assert index.propose(num, in_flight) == by_hand(text[:done], low, low + more, per_token, num, in_flight)


def test_an_empty_index_proposes_nothing() -> None:
    assert SuffixIndex().propose(5) == []


def test_the_longest_wins_then_the_latest_and_a_period_goes_on() -> None:
    for text, drafts in (
        ([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], [7, 9, 2]),
        ([5, 6, 1, 5, 6, 2, 5, 6], [2, 5, 6]),
        ([4, 4, 4], [4, 4, 4]),
        ([1, 2, 1, 2, 1], [2, 1, 2]),
        ([1, 2, 3, 4], []),
    ):
        index = SuffixIndex(min_match=2)
        index.append(text)
        assert index.propose(3) == drafts


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Grows by one for each comparison of two contexts, which is what a token costs."""
    made: list[int] = []
    real = SuffixIndex._common

    def counted(self: SuffixIndex, *args: Any) -> int:
        made.append(1)
        return real(self, *args)

    monkeypatch.setattr(SuffixIndex, "_common", counted)
    return made


def texts(length: int) -> dict[str, list[int]]:
    """Random text of many and few tokens, one token, a period, and a text twice."""
    draw = random.Random(0)
    many = [draw.randrange(50_000) for _ in range(length)]
    return {
        "many": many,
        "few": [draw.randrange(4) for _ in range(length)],
        "one": [7] * length,
        "period": [place % 50 for place in range(length)],
        "twice": many[: length // 2] * 2,
    }


def test_what_a_token_costs_does_not_grow_with_the_text(comparisons: list[int]) -> None:
    cost: dict[str, list[float]] = {}
    for length in (2000, 8000):
        for name, text in texts(length).items():
            comparisons.clear()
            SuffixIndex(max_match=16).append(text)
            cost.setdefault(name, []).append(len(comparisons) / length)
    print({name: [round(value, 2) for value in values] for name, values in cost.items()})
    assert all(values[-1] <= 16 for values in cost.values())
    # random text is matched as deep as the logarithm of its length: 1 more for 4 times the text of 4 tokens
    assert all(long <= 1.05 * short + 1 for short, long in cost.values())


def test_memory_for_a_token_is_small() -> None:
    sizes = {}
    for name, text in texts(2000).items():
        tracemalloc.start()
        index = SuffixIndex()
        index.append(text)
        sizes[name] = tracemalloc.get_traced_memory()[0] / len(index)
        tracemalloc.stop()
    print({name: f"{size:.0f} bytes a token" for name, size in sizes.items()})
    assert all(size < 300 for size in sizes.values())

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isoinfer.engine.stop_ids import StopIds


def may_end(ids: StopIds, rows: Sequence[Sequence[int]]) -> list[bool]:
    found: list[bool] = ids.may_end(np.array(rows, dtype=np.int32)).tolist()
    return found


def test_a_row_may_end_while_somebody_stops_at_one_of_its_tokens() -> None:
    ids = StopIds(10)
    ids.add((3, 7))
    ids.add((3,))
    assert may_end(ids, [[1, 2], [2, 3], [7, 0]]) == [False, True, True]
    ids.remove((3, 7))
    assert may_end(ids, [[1, 2], [2, 3], [7, 0]]) == [False, True, False], "the other still stops at 3"
    ids.remove((3,))
    assert may_end(ids, [[3, 3]]) == [False]


def test_an_id_outside_the_vocabulary_stops_nobody() -> None:
    ids = StopIds(10)
    ids.add((-1, 10, 10**9, 4))
    assert may_end(ids, [[9], [4], [0]]) == [False, True, False]
    ids.remove((-1, 10, 10**9, 4))
    assert may_end(ids, [[9], [4], [0]]) == [False] * 3


def test_an_id_named_twice_counts_twice_both_ways() -> None:
    ids = StopIds(10)
    ids.add((4, 4))
    ids.remove((4, 4))
    assert may_end(ids, [[4]]) == [False]


def test_no_rows_no_answers() -> None:
    assert StopIds(4).may_end(np.zeros((0, 1), dtype=np.int32)).shape == (0,)


@given(requests=st.lists(st.lists(st.integers(-2, 12), max_size=4), max_size=6), data=st.data())
def test_it_is_what_the_running_requests_say(requests: list[list[int]], data: st.DataObject) -> None:
    ids, running = StopIds(10), []
    for request in requests:
        ids.add(request)
        running.append(request)
        if data.draw(st.booleans()):
            ids.remove(running.pop(data.draw(st.integers(0, len(running) - 1))))
        assert may_end(ids, [[t] for t in range(10)]) == [any(t in stops for stops in running) for t in range(10)]

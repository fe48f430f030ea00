from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isoinfer.engine.messages import AddRequest, CoreSampling
from isoinfer.engine.prompt_places import prompt_places
from isoinfer.engine.request import Request
from isoinfer.engine.slot_table import SlotTable


def make(prompt_len: int, num_prompt_logprobs: int, done: int = 0, start: int = 1) -> Request:
    sampling = CoreSampling(max_tokens=8, seed=0, num_prompt_logprobs=num_prompt_logprobs, prompt_logprobs_start=start)
    prompt = np.arange(100, 100 + prompt_len, dtype=np.int32)
    request = Request(0, AddRequest(request_id="r", prompt_token_ids=prompt, sampling=sampling), 64)
    request.num_prompt_logprobs_done = done
    return request


def places_of(*rows: tuple[Request, int, int]) -> dict[str, Any]:
    """The places of rows of (request, first token, tokens), in slots from the last one down."""
    table, slots = SlotTable(num_slots=len(rows), width=65, num_drafts=0), range(len(rows) - 1, -1, -1)
    for slot, (request, start, _) in zip(slots, rows, strict=True):
        table.enter(slot, request, start)
    return prompt_places(table, ints(slots), ints([start for _, start, _ in rows]), ints([n for _, _, n in rows]))


def ints(values: Sequence[int]) -> Any:
    return np.array(values, dtype=np.int32)


def test_nobody_asks_nothing_is_there() -> None:
    places = places_of((make(5, -1), 0, 5))
    assert places["num_prompt_logprobs"] == 0
    assert all(places[name].size == 0 for name in places if name != "num_prompt_logprobs")


def test_rows_are_counted_from_their_place_in_the_step() -> None:
    places = places_of((make(4, -1), 0, 4), (make(3, 2), 0, 3), (make(9, 5, done=4), 4, 2))
    assert places["num_prompt_logprobs"] == 5
    assert places["prompt_index_Q"].tolist() == [4, 5, 7, 8]
    assert places["prompt_target_Q"].tolist() == [101, 102, 105, 106]
    assert places["prompt_row_Q"].tolist() == [1, 1, 2, 2]
    assert places["prompt_position_Q"].tolist() == [1, 2, 5, 6]


def test_drafts_and_new_tokens_are_no_part_of_the_prompt() -> None:
    request = make(3, 2, done=2)
    request.known_L = np.arange(100, 106, dtype=np.int32)
    assert places_of((request, 5, 4))["prompt_index_Q"].size == 0


@given(prompt_len=st.integers(1, 12), data=st.data())
def test_chunks_cover_every_position_once_and_restarts_add_none(prompt_len: int, data: st.DataObject) -> None:
    request, seen, start, restarts = make(prompt_len, 0), [], 0, 0
    while start < prompt_len:
        count = data.draw(st.integers(1, prompt_len - start))
        positions = places_of((request, start, count))["prompt_position_Q"].tolist()
        seen += positions
        start += count
        request.num_prompt_logprobs_done = max([request.num_prompt_logprobs_done, *positions])
        if data.draw(st.integers(0, 3)) == 0 and restarts < 3:
            start, restarts = 0, restarts + 1
    assert seen == list(range(1, prompt_len))


def test_places_begin_where_the_request_says() -> None:
    places = places_of((make(9, 2, start=5), 0, 9), (make(9, 2, start=5), 6, 2))
    assert places["prompt_position_Q"].tolist() == [5, 6, 7, 8, 7, 8]

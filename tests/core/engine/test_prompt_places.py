from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isoinfer.engine.messages import AddRequest, CoreSampling
from isoinfer.engine.prompt_places import Row, prompt_places
from isoinfer.engine.request import Request


def make(prompt_len: int, num_prompt_logprobs: int, num_computed: int = 0, done: int = 0) -> Request:
    sampling = CoreSampling(max_tokens=8, seed=0, num_prompt_logprobs=num_prompt_logprobs)
    prompt = np.arange(100, 100 + prompt_len, dtype=np.int32)
    request = Request(0, AddRequest(request_id="r", prompt_token_ids=prompt, sampling=sampling), 64)
    request.num_computed, request.num_prompt_logprobs_done = num_computed, done
    return request


def test_nobody_asks_nothing_is_there() -> None:
    places = prompt_places([Row(make(5, -1), 5)])
    assert places["num_prompt_logprobs"] == 0
    assert all(places[name].size == 0 for name in places if name != "num_prompt_logprobs")


def test_rows_are_counted_from_their_place_in_the_step() -> None:
    places = prompt_places([Row(make(4, -1), 4), Row(make(3, 2), 3), Row(make(9, 5, num_computed=4, done=4), 2)])
    assert places["num_prompt_logprobs"] == 5
    assert places["prompt_index_Q"].tolist() == [4, 5, 7, 8]
    assert places["prompt_target_Q"].tolist() == [101, 102, 105, 106]
    assert places["prompt_row_Q"].tolist() == [1, 1, 2, 2]
    assert places["prompt_position_Q"].tolist() == [1, 2, 5, 6]


@given(prompt_len=st.integers(1, 12), data=st.data())
def test_chunks_cover_every_position_once_and_restarts_add_none(prompt_len: int, data: st.DataObject) -> None:
    request, seen = make(prompt_len, 0), []
    while request.num_computed < prompt_len:
        count = data.draw(st.integers(1, prompt_len - request.num_computed))
        positions = prompt_places([Row(request, count)])["prompt_position_Q"].tolist()
        seen += positions
        request.num_computed += count
        request.num_prompt_logprobs_done = max([request.num_prompt_logprobs_done, *positions])
        if data.draw(st.integers(0, 3)) == 0 and request.epoch < 3:
            request.restart()
    assert seen == list(range(1, prompt_len))

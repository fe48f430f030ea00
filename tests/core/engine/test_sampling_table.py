"""A SamplePlan from requests in slots: what each row gets, and that nobody gets a neighbour's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.backends.ops import BIAS_LOGITS, MASK_LOGITS, LogitsSpec
from isoinfer.engine.messages import AddRequest, CoreSampling
from isoinfer.engine.request import Request
from isoinfer.engine.sampling_table import SamplingTable

VOCAB = 70
Make = Callable[..., Request]


@pytest.fixture
def table() -> SamplingTable:
    return SamplingTable(num_slots=6, vocab_size=VOCAB)


@pytest.fixture
def make(table: SamplingTable) -> Make:
    """A request in a slot, with a prompt and an output so far, known to the table."""

    def make_(slot: int, prompt: list[int], output: list[int] = [], **fields: Any) -> Request:  # noqa: B006
        sampling = CoreSampling(**{"max_tokens": 20, "seed": slot, **fields})
        message = AddRequest(request_id=f"r{slot}", prompt_token_ids=np.array(prompt, np.int32), sampling=sampling)
        request = Request(slot, message, 64)
        request.slot = slot
        for token in output:
            request.append(token)
        table.add(slot, sampling)
        return request

    return make_


def banned(plan: Any, row: int) -> list[int]:
    """Tokens that the plan's biases and masks forbid in `row`, found by the ops themselves."""
    logits = torch.zeros(plan.temperature_G.size, VOCAB)
    static = LogitsSpec(vocab_size=VOCAB)
    entries = (torch.from_numpy(getattr(plan, name)) for name in ("bias_row_M", "bias_token_M", "bias_value_M"))
    BIAS_LOGITS.reference(static, logits, *entries)
    if plan.mask_GW.shape[1]:
        MASK_LOGITS.reference(static, logits, torch.from_numpy(plan.mask_GW))
    return torch.where(logits[row] == -torch.inf)[0].tolist()


def test_rows_come_in_the_order_of_the_requests_with_their_own_settings(table: SamplingTable, make: Make) -> None:
    a = make(4, [1, 2], temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, seed=-(2**63), num_logprobs=3)
    b = make(1, [5], [6, 7], temperature=0.0, seed=2**63 - 1)
    plan = table.plan(9, [b, a])
    assert plan.step_id == 9
    assert plan.temperature_G.tolist() == [0.0, 0.5]
    assert plan.top_k_G.tolist() == [0, 7]
    assert plan.top_p_G.tolist() == pytest.approx([1.0, 0.9])
    assert plan.min_p_G.tolist() == pytest.approx([0.0, 0.1])
    assert plan.seed_G.tolist() == [2**63 - 1, -(2**63)]
    assert plan.position_G.tolist() == [3, 2]
    assert plan.prompt_len_G.tolist() == [1, 2]
    assert plan.num_logprobs == 3
    assert table.plan(10, [b]).num_logprobs == -1


def test_dtypes_are_those_that_the_ops_take(table: SamplingTable, make: Make) -> None:
    plan = table.plan(1, [make(0, [1], presence_penalty=1.0, bias_token_ids=(1,), bias_values=(2.0,))])
    arrays = {name: getattr(plan, name) for name in type(plan).__slots__}
    types = {name: array.dtype.name for name, array in arrays.items() if isinstance(array, np.ndarray)}
    floats = ("temperature_G", "top_p_G", "min_p_G", "presence_G", "frequency_G", "repetition_G", "bias_value_M")
    wanted = dict.fromkeys(types, "int32") | dict.fromkeys(floats, "float32") | {"seed_G": "int64"}
    assert types == wanted


def test_all_greedy_only_if_every_row_is(table: SamplingTable, make: Make) -> None:
    greedy, warm = make(0, [1], temperature=0.0), make(1, [1], temperature=0.01)
    assert table.plan(1, [greedy]).all_greedy
    assert not table.plan(1, [greedy, warm]).all_greedy
    assert table.plan(1, []).all_greedy


def test_stop_tokens_are_banned_until_min_tokens_are_there(table: SamplingTable, make: Make) -> None:
    request = make(2, [1], min_tokens=2, stop_token_ids=(3, 9))
    assert banned(table.plan(1, [request]), 0) == [3, 9]
    request.append(5)
    assert banned(table.plan(1, [request]), 0) == [3, 9]
    request.append(5)
    assert banned(table.plan(1, [request]), 0) == []


def test_bad_words_are_banned_only_where_they_would_be_completed(table: SamplingTable, make: Make) -> None:
    words = ((4,), (5, 6), (5, 5, 7))
    request = make(3, [5, 5], bad_words=words)
    assert banned(table.plan(1, [request]), 0) == [4], "the prompt is not part of what must not be said"
    request.append(5)
    assert banned(table.plan(1, [request]), 0) == [4, 6]
    request.append(5)
    assert banned(table.plan(1, [request]), 0) == [4, 6, 7]
    request.append(8)
    assert banned(table.plan(1, [request]), 0) == [4]


def test_allowed_ids_are_a_bit_mask_and_others_keep_everything(table: SamplingTable, make: Make) -> None:
    allowed = (0, 31, 32, 63, 64, 69)
    rows = [make(0, [1]), make(5, [1], allowed_token_ids=allowed)]
    plan = table.plan(1, rows)
    assert plan.mask_GW.shape == (2, 3)
    assert banned(plan, 0) == []
    assert banned(plan, 1) == [t for t in range(VOCAB) if t not in allowed]
    assert table.plan(2, rows[:1]).mask_GW.shape == (1, 0), "no mask where nobody needs one"


def test_biases_and_bans_add_up_in_their_rows(table: SamplingTable, make: Make) -> None:
    plain = make(0, [1])
    biased = make(1, [1], bias_token_ids=(2, 3), bias_values=(1.5, -4.0), min_tokens=1, stop_token_ids=(3,))
    plan = table.plan(1, [plain, biased])
    entries = zip(plan.bias_row_M.tolist(), plan.bias_token_M.tolist(), plan.bias_value_M.tolist(), strict=True)
    assert list(entries) == [(1, 2, 1.5), (1, 3, -4.0), (1, 3, -np.inf)]


def test_histories_are_there_only_if_somebody_is_penalised(table: SamplingTable, make: Make) -> None:
    plain = make(0, [1, 2, 3], [4])
    punished = make(1, [5], [6, 7], repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=-0.25)
    assert table.plan(1, [plain]).history_GL.shape == (0, 0)
    plan = table.plan(1, [plain, punished])
    assert plan.history_GL.tolist() == [[1, 2, 3, 4], [5, 6, 7, 0]]
    assert plan.length_G.tolist() == [4, 3]
    assert plan.prompt_len_G.tolist() == [3, 1]
    assert plan.presence_G.tolist() == [0.0, 0.5]
    assert plan.frequency_G.tolist() == [0.0, -0.25]
    assert plan.repetition_G.tolist() == pytest.approx([1.0, 1.2])


def test_a_slot_forgets_its_former_request(table: SamplingTable, make: Make) -> None:
    make(0, [1], allowed_token_ids=(1,), presence_penalty=1.0, bad_words=((2,),), num_logprobs=5, temperature=2.0)
    plan = table.plan(1, [make(0, [1], temperature=0.0, bad_words=(), num_logprobs=-1)])
    assert plan.mask_GW.shape == (1, 0)
    assert plan.history_GL.size == plan.bias_row_M.size == 0
    assert (plan.num_logprobs, plan.all_greedy) == (-1, True)
    assert plan.presence_G.tolist() == [0.0]

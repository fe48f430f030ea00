"""A SamplePlan from requests in slots: what each row gets, and that nobody gets a neighbour's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.backends.ops import BIAS_LOGITS, MASK_LOGITS, LogitsSpec
from isoinfer.engine.messages import AddRequest, CoreSampling
from isoinfer.engine.plan import SamplePlan
from isoinfer.engine.request import Request
from isoinfer.engine.sampling_table import SamplingTable
from isoinfer.engine.slot_table import SlotTable

VOCAB = 70


class Slots:
    """A SamplingTable and the SlotTable beside it, filled slot by slot."""

    def __init__(self, num_drafts: int = 3) -> None:
        self.sampling = SamplingTable(num_slots=6, vocab_size=VOCAB)
        self.table = SlotTable(num_slots=6, width=65, num_drafts=num_drafts)

    def make(self, slot: int, prompt: list[int], output: list[int] = [], **fields: Any) -> int:  # noqa: B006
        """A request takes `slot` with a prompt and what it has said so far."""
        sampling = CoreSampling(**{"max_tokens": 20, "seed": slot, **fields})
        message = AddRequest(request_id=f"r{slot}", prompt_token_ids=np.array(prompt, np.int32), sampling=sampling)
        request = Request(slot, message, 64)
        self.table.enter(slot, request, 0)
        self.sampling.add(slot, request)
        for token in output:
            self.append(slot, token)
        return slot

    def append(self, slot: int, token: int) -> None:
        self.table.append(ints(slot), np.array([[token]], np.int32), ints(1))

    def draft(self, slot: int, *tokens: int) -> None:
        """What a proposer expects next."""
        self.table.drafts_SK[slot, : len(tokens)] = tokens

    def plan(self, *slots: int, step_id: int = 1, drafts: Sequence[int] = ()) -> SamplePlan:
        return self.sampling.plan(step_id, self.table, ints(*slots), ints(*(drafts or [0] * len(slots))))


@pytest.fixture
def slots() -> Slots:
    return Slots()


def ints(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


def banned(plan: Any, row: int) -> list[int]:
    """Tokens that the plan's biases and masks forbid in `row`, found by the ops themselves."""
    logits = torch.zeros(plan.temperature_P.size, VOCAB)
    static = LogitsSpec(vocab_size=VOCAB)
    entries = (torch.from_numpy(getattr(plan, name)) for name in ("bias_row_M", "bias_token_M", "bias_value_M"))
    BIAS_LOGITS.reference(static, logits, *entries)
    if plan.mask_PW.shape[1]:
        MASK_LOGITS.reference(static, logits, torch.from_numpy(plan.mask_PW))
    return torch.where(logits[row] == -torch.inf)[0].tolist()


def test_rows_come_in_the_order_of_the_requests_with_their_own_settings(slots: Slots) -> None:
    a = slots.make(4, [1, 2], temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, seed=-(2**63), num_logprobs=3)
    b = slots.make(1, [5], [6, 7], temperature=0.0, seed=2**63 - 1)
    plan = slots.plan(b, a, step_id=9)
    assert plan.step_id == 9
    assert plan.temperature_P.tolist() == [0.0, 0.5]
    assert plan.top_k_P.tolist() == [0, 7]
    assert plan.top_p_P.tolist() == pytest.approx([1.0, 0.9])
    assert plan.min_p_P.tolist() == pytest.approx([0.0, 0.1])
    assert plan.seed_P.tolist() == [2**63 - 1, -(2**63)]
    assert plan.position_P.tolist() == [3, 2]
    assert plan.prompt_len_P.tolist() == [1, 2]
    assert plan.num_logprobs == 3
    assert slots.plan(b).num_logprobs == -1


def test_dtypes_are_those_that_the_ops_take(slots: Slots) -> None:
    plan = slots.plan(slots.make(0, [1], presence_penalty=1.0, bias_token_ids=(1,), bias_values=(2.0,)), drafts=[2])
    arrays = {name: getattr(plan, name) for name in type(plan).__slots__}
    types = {name: array.dtype.name for name, array in arrays.items() if isinstance(array, np.ndarray)}
    floats = ("temperature_P", "top_p_P", "min_p_P", "presence_P", "frequency_P", "repetition_P", "bias_value_M")
    wanted = dict.fromkeys(types, "int32") | dict.fromkeys(floats, "float32") | {"seed_P": "int64"}
    assert types == wanted


def test_all_greedy_only_if_every_row_is(slots: Slots) -> None:
    greedy, warm = slots.make(0, [1], temperature=0.0), slots.make(1, [1], temperature=0.01)
    assert slots.plan(greedy).all_greedy
    assert not slots.plan(greedy, warm).all_greedy
    assert slots.plan().all_greedy


def test_stop_tokens_are_banned_until_min_tokens_are_there(slots: Slots) -> None:
    request = slots.make(2, [1], min_tokens=2, stop_token_ids=(3, 9))
    assert banned(slots.plan(request), 0) == [3, 9]
    slots.append(request, 5)
    assert banned(slots.plan(request), 0) == [3, 9]
    slots.append(request, 5)
    assert banned(slots.plan(request), 0) == []


def test_bad_words_are_banned_only_where_they_would_be_completed(slots: Slots) -> None:
    words = ((4,), (5, 6), (5, 5, 7))
    request = slots.make(3, [5, 5], bad_words=words)
    assert banned(slots.plan(request), 0) == [4], "the prompt is not part of what must not be said"
    slots.append(request, 5)
    assert banned(slots.plan(request), 0) == [4, 6]
    slots.append(request, 5)
    assert banned(slots.plan(request), 0) == [4, 6, 7]
    slots.append(request, 8)
    assert banned(slots.plan(request), 0) == [4]


def test_allowed_ids_are_a_bit_mask_and_others_keep_everything(slots: Slots) -> None:
    allowed = (0, 31, 32, 63, 64, 69)
    rows = [slots.make(0, [1]), slots.make(5, [1], allowed_token_ids=allowed)]
    plan = slots.plan(*rows)
    assert plan.mask_PW.shape == (2, 3)
    assert banned(plan, 0) == []
    assert banned(plan, 1) == [t for t in range(VOCAB) if t not in allowed]
    assert slots.plan(*rows[:1]).mask_PW.shape == (1, 0), "no mask where nobody needs one"


def test_biases_and_bans_add_up_in_their_rows(slots: Slots) -> None:
    plain = slots.make(0, [1])
    biased = slots.make(1, [1], bias_token_ids=(2, 3), bias_values=(1.5, -4.0), min_tokens=1, stop_token_ids=(3,))
    plan = slots.plan(plain, biased)
    entries = zip(plan.bias_row_M.tolist(), plan.bias_token_M.tolist(), plan.bias_value_M.tolist(), strict=True)
    assert list(entries) == [(1, 2, 1.5), (1, 3, -4.0), (1, 3, -np.inf)]


def test_histories_are_there_only_if_somebody_is_penalised(slots: Slots) -> None:
    plain = slots.make(0, [1, 2, 3], [4])
    punished = slots.make(1, [5], [6, 7], repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=-0.25)
    assert slots.plan(plain).history_PL.shape == (0, 0)
    plan = slots.plan(plain, punished)
    assert plan.history_PL.tolist() == [[0, 0, 0], [5, 6, 7]], "only who is penalised needs one"
    assert plan.length_P.tolist() == [0, 3]
    assert plan.prompt_len_P.tolist() == [3, 1]
    assert plan.presence_P.tolist() == [0.0, 0.5]
    assert plan.frequency_P.tolist() == [0.0, -0.25]
    assert plan.repetition_P.tolist() == pytest.approx([1.0, 1.2])


def test_a_slot_forgets_its_former_request(slots: Slots) -> None:
    slots.make(0, [1], allowed_token_ids=(1,), presence_penalty=1.0, bad_words=((2,),), num_logprobs=5, temperature=2.0)
    plan = slots.plan(slots.make(0, [1], temperature=0.0, bad_words=(), num_logprobs=-1))
    assert plan.mask_PW.shape == (1, 0)
    assert plan.history_PL.size == plan.bias_row_M.size == 0
    assert (plan.num_logprobs, plan.all_greedy) == (-1, True)
    assert plan.presence_P.tolist() == [0.0]


def test_a_row_with_drafts_has_a_place_for_each_and_one_more(slots: Slots) -> None:
    a, b = slots.make(2, [1, 2], [3], seed=5, temperature=0.5), slots.make(0, [4], seed=6, top_k=3)
    plan = slots.plan(a, b, drafts=[2, 0])
    assert plan.places_G.tolist() == [3, 1]
    assert plan.position_P.tolist() == [3, 4, 5, 1]
    assert plan.seed_P.tolist() == [5, 5, 5, 6]
    assert plan.top_k_P.tolist() == [0, 0, 0, 3]
    assert plan.temperature_P.tolist() == [0.5, 0.5, 0.5, 1.0]


def test_bans_and_histories_of_a_place_count_the_drafts_before_it(slots: Slots) -> None:
    row = slots.make(1, [9], [5], bad_words=((5, 6), (7, 8)), min_tokens=2, stop_token_ids=(3,), presence_penalty=1.0)
    slots.draft(row, 7, 5)
    plan = slots.plan(row, drafts=[2])
    assert [banned(plan, place) for place in range(3)] == [[3, 6], [8], [6]]
    assert plan.history_PL.tolist() == [[9, 5, 0, 0], [9, 5, 7, 0], [9, 5, 7, 5]]
    assert plan.length_P.tolist() == [2, 3, 4]


def test_a_request_that_ended_since_is_as_good_as_any(slots: Slots) -> None:
    gone, stays = slots.make(0, [1], bad_words=((4,),)), slots.make(1, [2], bad_words=((5,),))
    slots.table.leave(gone)
    plan = slots.plan(gone, stays)
    assert [banned(plan, place) for place in range(2)] == [[], [5]]

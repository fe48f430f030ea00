"""Verification on the device: drafts accepted by either rule, histories by slot, what is left of a prediction."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.backends.cpu import plugin
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.engine.round_outputs import RoundOutputs, RoundTensors
from isoinfer.engine.sampler import CHOICE
from isoinfer.engine.verification import RowTensors, Verification
from isoinfer.speculation.config import SpeculativeConfig

VOCAB, DRAFTS = 16, 2


@pytest.fixture(scope="module")
def backend() -> Any:
    (device,) = plugin.isoinfer_backend_probe()
    return plugin.isoinfer_backend_create(device, BackendConfig(dtype="float32", threads=1))


def make(backend: Any, method: Any = "ngram", depth: int = 1, accept: Any = "coupled") -> Verification:
    config = SpeculativeConfig(method=method, num_drafts=DRAFTS, min_match=1, max_match=3, accept=accept)
    return Verification(backend, backend.bind, config, depth=depth, num_slots=4, max_model_len=32, vocab_size=VOCAB)


def outputs_of(backend: Any) -> RoundTensors:
    return RoundOutputs(backend, max_rows=4, num_drafts=DRAFTS, depth=2).device


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def entered(fake: SimpleNamespace, slot: int, tokens: list[int]) -> Any:
    return replace(
        fake.step_plan([0], [len(tokens)]),
        entered_slot_E=np.array([slot], np.int32),
        entered_len_E=np.array([len(tokens)], np.int32),
        entered_tokens_T=np.array(tokens, np.int32),
    )


def run(
    check: Verification,
    outputs: RoundTensors,
    inputs: list[int],
    sampled: list[int],
    *,
    slot: int,
    length: int,
    **on: Any,
) -> None:
    """One row of inputs (last token, drafts), whose places gave `sampled`."""
    count = len(inputs)
    step: Any = SimpleNamespace(token_ids_T=ints(*inputs), places_P=torch.arange(count, dtype=torch.int32))
    rows = RowTensors(slot_G=ints(slot), length_G=ints(length), start_X=ints(0, count))
    logits = on.pop("logits", torch.zeros(count, VOCAB))
    check.run(ints(*sampled), logits, step, rows, on, outputs)


@pytest.mark.parametrize(
    ("drafts", "sampled", "new"),
    [([4, 5], [4, 5, 6], [4, 5, 6]), ([4, 5], [4, 9, 6], [4, 9]), ([4, 5], [8, 5, 6], [8]), ([], [7], [7])],
)
def test_drafts_count_where_they_were_sampled_anyway(
    backend: Any, fake: SimpleNamespace, drafts: list[int], sampled: list[int], new: list[int]
) -> None:
    check, outputs, stream = make(backend), outputs_of(backend), backend.stream()
    check.enter(entered(fake, 1, [1, 2, 3]), stream)
    run(check, outputs, [3, *drafts], sampled, slot=1, length=3)
    assert outputs.token_GJ[0, : len(new)].tolist() == new
    assert int(outputs.accepted_G[0]) == len(new) - 1
    assert int(outputs.rejected_G[0]) == len(drafts) - len(new) + 1
    assert int(outputs.last_token_G[0]) == new[-1]


def test_the_next_drafts_follow_the_history_of_the_slot(backend: Any, fake: SimpleNamespace) -> None:
    check, outputs, stream = make(backend), outputs_of(backend), backend.stream()
    check.enter(entered(fake, 3, [1, 2, 9, 4, 1]), stream)
    run(check, outputs, [1], [2], slot=3, length=5)
    assert outputs.draft_GK[0].tolist() == [9, 4], "what followed 1 2 before"
    assert int(outputs.found_G[0]) == 2
    run(check, outputs, [2, 9, 4], [9, 12, 0], slot=3, length=6)
    assert outputs.token_GJ[0, :2].tolist() == [9, 12]
    assert int(outputs.found_G[0]) == 0, "12 never occurred"
    check.enter(entered(fake, 3, [5, 6, 5]), stream)
    run(check, outputs, [5], [6], slot=3, length=3)
    assert outputs.draft_GK[0, :1].tolist() == [5], "of the request before nothing is left"


def test_the_classical_rule_never_accepts_what_cannot_be_sampled(backend: Any, fake: SimpleNamespace) -> None:
    check, outputs = make(backend, accept="rejection"), outputs_of(backend)
    check.enter(entered(fake, 0, [1, 2, 3]), backend.stream())
    logits = torch.full((3, VOCAB), -torch.inf)
    logits[0, 4] = logits[1, 7] = logits[2, 8] = 0.0  # sure of 4, then of 7
    choice = dict(zip(CHOICE, (torch.ones(3), ints(0, 0, 0), torch.ones(3), torch.zeros(3)), strict=False))
    choice |= {"seed_P": torch.tensor([1, 1, 1]), "position_P": ints(3, 4, 5)}
    run(check, outputs, [3, 4, 5], [4, 7, 8], slot=0, length=3, logits=logits, **choice)
    assert outputs.token_GJ[0, :2].tolist() == [4, 7]
    assert (int(outputs.accepted_G[0]), int(outputs.rejected_G[0])) == (1, 1)


@pytest.mark.parametrize(("said", "drafts"), [([4], [5, 6]), ([4, 5], [6, 7]), ([9], [11, 12])])
def test_what_is_left_of_a_prediction_is_drafted(
    backend: Any, fake: SimpleNamespace, said: list[int], drafts: list[int]
) -> None:
    check, outputs = make(backend, method="suffix", depth=2), outputs_of(backend)
    outputs.token_GJ[0, : len(said)] = ints(*said)
    outputs.accepted_G[0] = len(said) - 1
    outputs.draft_GK[0], outputs.found_G[0] = ints(11, 12), 2  # the device's own
    plan = replace(
        fake.step_plan([4], [3], remap=[0], drafts=[2]),
        predicted_RX=np.array([[4, 5, 6, 7, 8]], np.int32),
        num_predicted_R=np.array([5], np.int32),
    )
    check.take_predictions(plan, np.array([0], np.int32), outputs, backend.stream())
    assert outputs.draft_GK[0].tolist() == drafts


def test_a_plan_without_predictions_leaves_the_drafts(backend: Any, fake: SimpleNamespace) -> None:
    check, outputs = make(backend), outputs_of(backend)
    outputs.draft_GK[0] = ints(1, 2)
    check.take_predictions(fake.step_plan([4], [1], remap=[0]), np.array([0], np.int32), outputs, backend.stream())
    assert outputs.draft_GK[0].tolist() == [1, 2]


def test_rows_are_placed_by_slot_length_and_places(backend: Any, fake: SimpleNamespace) -> None:
    plan = fake.step_plan([7, 0, 3], [3, 4, 1], drafts=[2, 0, 0], samples=[True, False, True])
    sample_plan: Any = SimpleNamespace(
        places_G=np.array([3, 1], np.int32), position_P=np.array([8, 9, 10, 4], np.int32)
    )
    rows = make(backend).place(plan, sample_plan, backend.stream())
    assert rows.slot_G.tolist() == [0, 2]
    assert rows.length_G.tolist() == [8, 4]
    assert rows.start_X.tolist() == [0, 3, 4]

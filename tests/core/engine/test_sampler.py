"""Which sampling ops run for a plan, over the references of all ops."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.backends.cpu import plugin
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.engine.plan import SamplePlan
from isoinfer.engine.sampler import Sampled, Sampler, to_message

VOCAB = 40


class Counting:
    """Binds references and counts their calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def bind(self, op: Any, static: Any) -> Any:
        @functools.wraps(op.reference)
        def call(*args: Any) -> Any:
            self.calls.append(op.name)
            return op.reference(static, *args)

        return call


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def sample(counting: Counting) -> Any:
    """sample(logits, plan) -> tokens and Sampled, by way of the device."""
    (device,) = plugin.isoinfer_backend_probe()
    config = BackendConfig(dtype="float32", threads=1, options={"native": "off"})
    backend = plugin.isoinfer_backend_create(device, config)
    sampler, stream = Sampler(backend, counting.bind, VOCAB), backend.stream()

    def sample_(logits_PV: torch.Tensor, plan: SamplePlan) -> tuple[list[int], Sampled]:
        out = Sampled()
        token_P = sampler.run(logits_PV, plan, sampler.place(plan, stream), out)
        return token_P.tolist(), out

    return sample_


def plan_of(rows: int, **changes: Any) -> SamplePlan:
    ints, floats = np.zeros(rows, np.int32), np.zeros(rows, np.float32)
    plan = SamplePlan(
        step_id=1,
        places_G=ints + 1,
        temperature_P=floats,
        top_k_P=ints,
        top_p_P=floats + 1,
        min_p_P=floats,
        seed_P=ints.astype(np.int64),
        position_P=ints + 3,
        history_PL=np.zeros((0, 0), np.int32),
        prompt_len_P=ints + 1,
        length_P=ints + 3,
        presence_P=floats,
        frequency_P=floats,
        repetition_P=floats + 1,
        bias_row_M=ints[:0],
        bias_token_M=ints[:0],
        bias_value_M=floats[:0],
        mask_PW=np.zeros((rows, 0), np.int32),
        num_logprobs=-1,
    )
    return replace(plan, **changes)


def test_greedy_rows_cost_an_argmax_and_nothing_else(sample: Any, counting: Counting) -> None:
    logits = torch.randn(3, VOCAB)
    tokens, out = sample(logits, plan_of(3))
    assert counting.calls == ["argmax"]
    assert tokens == logits.argmax(-1).tolist()
    assert out.logprobs is None


def test_one_warm_row_samples_all_and_leaves_greedy_rows_greedy(sample: Any, counting: Counting) -> None:
    logits = torch.randn(3, VOCAB)
    tokens, _ = sample(logits, plan_of(3, temperature_P=np.array([0, 1, 0], np.float32)))
    assert counting.calls == ["sample"]
    assert tokens[::2] == logits.argmax(-1).tolist()[::2]


def test_changes_to_logits_come_in_order_and_logprobs_are_of_the_raw_ones(sample: Any, counting: Counting) -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, 5], logits[:, 6], logits[:, 7] = 4.0, 3.0, 2.0
    mask = np.full((2, 2), -1, np.int32)
    mask[1, 0] = 1 << 7
    plan = plan_of(
        2,
        history_PL=np.array([[1, 5, 5], [1, 1, 1]], np.int32),
        presence_P=np.array([2, 0], np.float32),
        bias_row_M=np.array([0], np.int32),
        bias_token_M=np.array([6], np.int32),
        bias_value_M=np.array([-2], np.float32),
        mask_PW=mask,
        num_logprobs=1,
    )
    raw = logits.clone()
    tokens, out = sample(logits, plan)
    assert counting.calls == ["penalize", "bias_logits", "mask_logits", "argmax", "logprobs"]
    assert tokens == [5, 7], "5 has 2 left, as much as 7, and 6 one"
    expected = torch.log_softmax(raw, -1)
    message = to_message(out.logprobs)
    assert message.logprob_T.tolist() == pytest.approx([float(expected[0, 5]), float(expected[1, 7])])
    assert message.rank_T.tolist() == [1, 3]
    assert message.top_ids_TX.tolist() == [[5], [5]]


def test_more_best_tokens_than_the_vocabulary_has_are_all_of_them(sample: Any) -> None:
    _, out = sample(torch.randn(1, VOCAB), plan_of(1, num_logprobs=VOCAB + 7))
    assert to_message(out.logprobs).top_ids_TX.shape == (1, VOCAB)

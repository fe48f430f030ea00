from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isoinfer.engine import wire
from isoinfer.engine.messages import TokenLogprobs
from isoinfer.engine.plan import SamplePlan, StepPlan, StepResult

TYPES = wire.registry(StepPlan, SamplePlan, StepResult, TokenLogprobs)


def equal(a: Any, b: Any) -> bool:
    """Same class, and every field of the same type, dtype and value."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if hasattr(a, "__slots__"):
        return all(equal(getattr(a, name), getattr(b, name)) for name in type(a).__slots__)
    return bool(a == b)


def test_plans_and_results_of_a_real_step_go_through_bytes(fake: SimpleNamespace) -> None:
    core = fake.make_core(windows=(None, 5))
    settings = {"temperature": 0.7, "presence_penalty": 1.0, "min_tokens": 2, "stop_token_ids": (3,)}
    core.add("a", [1, 2, 3], num_logprobs=2, num_prompt_logprobs=1, allowed_token_ids=tuple(range(61)), **settings)
    core.add("b", [4, 5], bias_token_ids=(1,), bias_values=(-2.5,))
    plan = core.scheduler.schedule()
    sample_plan = core.scheduler.sample_plan(plan)
    handle = core.runner.submit(plan)
    core.runner.sample(handle, sample_plan)
    result = core.runner.settle(handle)
    assert result.logprobs is not None
    assert result.prompt_logprobs is not None
    assert plan.prompt_index_Q.size == 2
    assert len(plan.block_tables) == 2
    assert sample_plan.bias_row_M.size == 2
    for message in (plan, sample_plan, result):
        back = wire.decode(wire.encode(message), TYPES)
        assert back is not message
        assert equal(back, message)


def test_a_plan_with_a_negative_token_or_a_wrong_count_cannot_exist(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    core.add("a", [1, 2, 3])
    plan = core.scheduler.schedule()
    with pytest.raises(AssertionError, match="negative"):
        replace(plan, token_ids_T=np.array([1, -1, 3], np.int32))
    with pytest.raises(AssertionError, match="token count"):
        replace(plan, token_ids_T=np.array([1, 2], np.int32))
    with pytest.raises(AssertionError, match="a prediction is a token id"):
        replace(plan, predicted_RX=np.array([[-1]], np.int32))


def test_what_the_host_knows_of_the_step_before(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    core.add("a", [1, 2, 3])
    plan = core.scheduler.schedule()
    assert (plan.num_rows, plan.num_tokens, plan.is_remapped, plan.knows_lengths) == (1, 3, False, True)
    assert replace(plan, remap_R=np.array([0], np.int32)).is_remapped
    assert not replace(plan, uncertain_R=np.array([2], np.int32)).knows_lengths

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from isoinfer.engine import wire
from isoinfer.engine.messages import TokenLogprobs
from isoinfer.engine.plan import SamplePlan, StepPlan, StepResult

TYPES = wire.registry(StepPlan, SamplePlan, StepResult, TokenLogprobs)


def equal(a: object, b: object) -> bool:
    """Same class, and every field of the same type, dtype and value."""
    for name in type(a).__slots__:
        left, right = getattr(a, name), getattr(b, name)
        if isinstance(left, np.ndarray):
            if left.dtype != right.dtype or left.shape != right.shape or left.tobytes() != right.tobytes():
                return False
        elif hasattr(left, "__slots__"):
            if not equal(left, right):
                return False
        elif (type(left), left) != (type(right), right):
            return False
    return type(a) is type(b)


def test_plans_and_results_of_a_real_step_go_through_bytes(fake: SimpleNamespace) -> None:
    core = fake.make_core()
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
    assert sample_plan.bias_row_M.size == 2
    for message in (plan, sample_plan, result):
        back = wire.decode(wire.encode(message), TYPES)
        assert back is not message
        assert equal(back, message)


def test_a_plan_with_a_negative_token_or_a_wrong_count_cannot_exist(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    core.add("a", [1, 2, 3])
    plan = core.scheduler.schedule()
    fields = {name: getattr(plan, name) for name in StepPlan.__slots__}
    with pytest.raises(AssertionError, match="negative"):
        StepPlan(**{**fields, "token_ids_T": np.array([1, -1, 3], np.int32)})
    with pytest.raises(AssertionError, match="token count"):
        StepPlan(**{**fields, "token_ids_T": np.array([1, 2], np.int32)})

"""Jobs: one prompt or many, settings for each, and the output of what was refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.errors import UserError
from isoinfer.jobs import FIRST_COME, Rank, is_one_prompt, params_of, refused
from isoinfer.sampling_params import SamplingParams


@pytest.mark.parametrize("prompt", ["text", "", [1, 2], np.array([1, 2]), torch.tensor([3])])
def test_a_text_or_token_ids_are_one_prompt(prompt: Any) -> None:
    assert is_one_prompt(prompt)


@pytest.mark.parametrize("prompts", [[], ["a"], [[1, 2]], [np.array([1])], [torch.tensor([1, 2])]])
def test_a_list_of_prompts_is_not_one(prompts: Any) -> None:
    assert not is_one_prompt(prompts)


def test_settings_are_for_all_or_for_each() -> None:
    one, two = SamplingParams(top_k=1), SamplingParams(top_k=2)
    assert params_of(None, 2) == [None, None]
    assert params_of(one, 2) == [one, one]
    assert params_of([one, two], 2) == [one, two]
    with pytest.raises(UserError, match="2 prompts but 1 sampling_params"):
        params_of([one], 2)


def test_a_refused_request_is_finished_with_its_reason() -> None:
    output = refused("x", "text", "too long")
    assert (output.request_id, output.prompt, output.finished, output.error) == ("x", "text", True, "too long")
    assert output.outputs == []
    assert refused("y", [1, 2], "no").prompt is None


def test_without_a_wish_nobody_is_ranked() -> None:
    assert Rank() == FIRST_COME
    assert (FIRST_COME.priority, FIRST_COME.cache_salt) == (0, None)

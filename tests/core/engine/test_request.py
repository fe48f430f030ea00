from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isoinfer.engine.messages import AddRequest, CoreSampling
from isoinfer.engine.request import NO_SLOT, Request


def make(prompt: list[int], max_model_len: int = 32, **fields: Any) -> Request:
    sampling = CoreSampling(**{"max_tokens": 4, "seed": 0, **fields})
    message = AddRequest(request_id="r", prompt_token_ids=np.array(prompt, np.int32), sampling=sampling)
    return Request(0, message, max_model_len)


def reasons(request: Request, tokens: list[int]) -> list[str]:
    """The finish reason after each token."""
    found = []
    for token in tokens:
        request.append(token)
        found.append(request.finish_reason(token))
    return found


@pytest.mark.parametrize(
    ("fields", "tokens", "expected"),
    [
        ({}, [9, 9, 9, 9], ["", "", "", "length"]),
        ({"stop_token_ids": (7,)}, [9, 7], ["", "stop"]),
        ({"stop_token_ids": (7,), "min_tokens": 2}, [7, 7, 7], ["", "", "stop"]),
        ({"stop_token_ids": (7,), "max_tokens": 1}, [7], ["stop"]),
        ({"max_tokens": 100, "max_model_len": 4}, [9, 9], ["", "length"]),
    ],
)
def test_finish_reasons(fields: dict[str, Any], tokens: list[int], expected: list[str]) -> None:
    assert reasons(make([1, 2], **fields), tokens) == expected


def test_restart_forgets_kv_and_keeps_tokens() -> None:
    request = make([1, 2])
    request.append(5)
    request.slot, request.num_computed = 3, 2
    assert request.num_uncomputed == 1
    request.restart()
    assert (request.slot, request.epoch, request.num_uncomputed, request.num_output) == (NO_SLOT, 1, 3, 1)
    assert request.tokens_L[: request.num_tokens].tolist() == [1, 2, 5]


def test_the_message_s_prompt_is_copied() -> None:
    prompt = np.array([1, 2], np.int32)
    request = Request(
        0, AddRequest(request_id="r", prompt_token_ids=prompt, sampling=CoreSampling(max_tokens=1, seed=0)), 8
    )
    prompt[:] = 9
    assert request.tokens_L[:2].tolist() == [1, 2]

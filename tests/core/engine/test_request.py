from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isoinfer.engine.messages import AddRequest, CoreSampling
from isoinfer.engine.request import NO_SLOT, Request


def make(prompt: list[int], max_model_len: int = 32, salt: str | None = None, **fields: Any) -> Request:
    sampling = CoreSampling(**{"max_tokens": 4, "seed": 0, **fields})
    ids = np.array(prompt, np.int32)
    message = AddRequest(request_id="r", prompt_token_ids=ids, sampling=sampling, cache_salt=salt)
    return Request(0, message, max_model_len)


def reasons(request: Request, tokens: list[int]) -> list[str]:
    """The finish reason after each token."""
    return [request.finish_reason(token, request.prompt_len + i) for i, token in enumerate(tokens, start=1)]


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


def test_a_new_request_knows_its_prompt_and_holds_nothing() -> None:
    request = make([1, 2])
    assert request.known_L.tolist() == [1, 2]
    assert (request.slot, request.epoch, request.prompt_len, request.limit) == (NO_SLOT, 0, 2, 6)


def test_the_limit_is_the_shorter_of_max_tokens_and_context() -> None:
    assert [make([1, 2], max_tokens=n, max_model_len=8).limit for n in (1, 6, 7)] == [3, 8, 8]


def test_the_message_s_prompt_is_copied() -> None:
    prompt = np.array([1, 2], np.int32)
    request = Request(
        0, AddRequest(request_id="r", prompt_token_ids=prompt, sampling=CoreSampling(max_tokens=1, seed=0)), 8
    )
    prompt[:] = 9
    assert request.known_L.tolist() == [1, 2]


def test_only_the_same_salt_shares_cached_kv() -> None:
    keys = {make([1], salt=salt).cache_key for salt in (None, "", "a", "b")}
    assert len(keys) == 4
    assert make([1], salt="a").cache_key == make([2, 3], salt="a").cache_key


def test_prompt_logprobs_need_the_whole_prompt_computed() -> None:
    assert make([1, 2, 3]).reads_prefix_cache
    assert not make([1, 2, 3], num_prompt_logprobs=0).reads_prefix_cache
    message = AddRequest(
        request_id="r",
        prompt_token_ids=np.array([1, 2, 3], np.int32),
        sampling=CoreSampling(max_tokens=1, seed=0),
        prefix_caching=False,
    )
    assert not Request(0, message, 8).reads_prefix_cache


def test_log_probabilities_of_the_prompt_keep_their_tokens_from_coming_out_of_the_cache() -> None:
    assert make([1, 2, 3, 4]).cacheable_L.tolist() == [1, 2, 3, 4]
    assert not make([1, 2, 3, 4], num_prompt_logprobs=0).reads_prefix_cache
    late = make([1, 2, 3, 4], num_prompt_logprobs=0, prompt_logprobs_start=3)
    assert late.reads_prefix_cache
    assert late.cacheable_L.tolist() == [1, 2, 3], "token 2 predicts token 3, so two may be cached"

from __future__ import annotations

import itertools

import numpy as np

from isoinfer.engine.messages import TokenLogprobs, TokenUpdate
from isoinfer.frontend.completion import Completion
from isoinfer.frontend.logprobs import LogprobReader
from isoinfer.frontend.request import Request
from isoinfer.sampling_params import SamplingParams


def make(n=1, **params) -> tuple[Request, list[Completion]]:
    parsed = SamplingParams(n=n, **params)
    completions = [Completion(i, parsed, None, LogprobReader(None)) for i in range(n)]
    request = Request(
        request_id="r",
        prompt="hi",
        prompt_token_ids=(4, 5, 6),
        params=parsed,
        completions=completions,
        stream=True,
        arrival=0.5,
        reader=LogprobReader(None),
    )
    return request, completions


def prompt_rows(start: int, num: int) -> TokenLogprobs:
    return TokenLogprobs(
        logprob_T=-np.arange(start, start + num, dtype=np.float32),
        rank_T=np.ones(num, np.int32),
        top_ids_TX=np.full((num, 1), 9, np.int32),
        top_logprobs_TX=np.full((num, 1), -0.5, np.float32),
    )


def test_times_are_those_of_the_first_token_and_the_last_completion():
    request, (first, second) = make(n=2)
    ticks = itertools.count(1.0).__next__
    request.update(first, TokenUpdate(request_id="r/0"), ticks)
    request.update(first, TokenUpdate(request_id="r/0", token_ids=(1,), finish_reason="length"), ticks)
    assert not request.output().finished
    request.update(second, TokenUpdate(request_id="r/1", token_ids=(2,)), ticks)
    request.update(second, TokenUpdate(request_id="r/1", finish_reason="stop"), ticks)
    output = request.output()
    assert output.finished
    assert (output.metrics.arrival, output.metrics.first_token, output.metrics.finished) == (0.5, 1.0, 2.0)
    assert [(c.index, c.token_ids, c.finish_reason) for c in output.outputs] == [(0, (1,), "length"), (1, (2,), "stop")]


def test_prompt_logprobs_come_in_runs_and_are_shown_when_complete():
    request, (completion,) = make(prompt_logprobs=1)
    request.update(completion, TokenUpdate(request_id="r", prompt_logprobs=prompt_rows(0, 2)), float)
    assert request.output().prompt_logprobs is None
    update = TokenUpdate(request_id="r", prompt_logprobs=prompt_rows(2, 1), prompt_logprobs_start=2)
    request.update(completion, update, float)
    shown = request.output().prompt_logprobs
    assert shown[0] is None
    assert [list(entry) for entry in shown[1:]] == [[5, 9], [6, 9]]
    assert [shown[1][5].logprob, shown[2][6].logprob] == [-1.0, -2.0]


def test_prompt_logprobs_nobody_asked_for_are_left_out():
    request, (completion,) = make()
    request.update(completion, TokenUpdate(request_id="r", prompt_logprobs=prompt_rows(0, 3)), float)
    assert request.output().prompt_logprobs is None


def test_an_error_and_the_cached_tokens_are_kept():
    request, (completion,) = make()
    request.update(completion, TokenUpdate(request_id="r", num_cached_tokens=2), float)
    request.update(completion, TokenUpdate(request_id="r", finish_reason="error", error="it broke"), float)
    output = request.output()
    assert (output.error, output.num_cached_tokens, output.outputs[0].finish_reason) == ("it broke", 2, "error")
    assert (output.prompt, output.prompt_token_ids) == ("hi", (4, 5, 6))

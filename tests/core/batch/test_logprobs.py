"""Both forms stay valid JSON and honest about what has no text."""

from __future__ import annotations

import math

from isoinfer.batch.logprobs import chat_logprobs, completion_logprobs
from isoinfer.outputs import CompletionOutput, Logprob


def _output(entry):
    return CompletionOutput(index=0, text="", token_ids=(1,), logprobs=[entry])


def test_a_banned_token_has_a_finite_number():
    entry = {1: Logprob(logprob=-math.inf, rank=9, decoded_token="x")}
    assert chat_logprobs(_output(entry), 0)["content"][0]["logprob"] == -9999.0
    assert completion_logprobs([1], [entry], 0, str)["token_logprobs"] == [-9999.0]


def test_half_a_character_has_no_bytes():
    entry = {1: Logprob(logprob=-1.0, rank=1, decoded_token="\ufffd")}
    assert chat_logprobs(_output(entry), 1)["content"][0]["bytes"] is None


def test_best_are_sorted_and_cut():
    entry = {i: Logprob(logprob=-float(i), rank=i, decoded_token=str(i)) for i in (5, 2, 1, 3)}
    output = CompletionOutput(index=0, text="", token_ids=(5,), logprobs=[entry])
    assert [b["token"] for b in chat_logprobs(output, 2)["content"][0]["top_logprobs"]] == ["1", "2"]


def test_not_asked_for():
    assert chat_logprobs(CompletionOutput(index=0, text="", token_ids=(1,)), 0) is None

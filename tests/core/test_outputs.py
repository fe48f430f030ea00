from __future__ import annotations

from isoinfer.outputs import CompletionOutput, Logprob


def completion(**values) -> CompletionOutput:
    return CompletionOutput(**({"index": 0, "text": "abc", "token_ids": (1, 2, 3)} | values))


def test_new_tokens_are_the_last_ones():
    entries = [{i: Logprob(logprob=-1.0 * i)} for i in (1, 2, 3)]
    output = completion(num_new_tokens=2, logprobs=entries)
    assert output.new_token_ids == (2, 3)
    assert output.new_logprobs == entries[1:]


def test_no_new_tokens_are_none_of_them():
    assert completion(num_new_tokens=0, logprobs=[]).new_token_ids == ()
    assert completion().new_logprobs is None


def test_finished_follows_the_reason():
    assert not completion().finished
    assert completion(finish_reason="stop").finished

from __future__ import annotations

import numpy as np

from isoinfer.engine.messages import TokenLogprobs
from isoinfer.frontend.logprobs import LogprobReader
from isoinfer.outputs import Logprob


def rows(top_ids, rank=3) -> TokenLogprobs:
    return TokenLogprobs(
        logprob_T=np.array([-2.5], np.float32),
        rank_T=np.array([rank], np.int32),
        top_ids_TX=np.array([top_ids], np.int32).reshape(1, -1),
        top_logprobs_TX=-np.arange(1, len(top_ids) + 1, dtype=np.float32).reshape(1, -1),
    )


def test_the_token_comes_first_and_then_the_best_others():
    entry = LogprobReader(None).entry(rows([5, 6]), 0, 9, 2)
    assert list(entry.items()) == [
        (9, Logprob(logprob=-2.5, rank=3)),
        (5, Logprob(logprob=-1.0, rank=1)),
        (6, Logprob(logprob=-2.0, rank=2)),
    ]


def test_a_token_among_the_best_is_not_repeated():
    entry = LogprobReader(None).entry(rows([5, 6]), 0, 6, 2)
    assert list(entry) == [6, 5]
    assert entry[6] == Logprob(logprob=-2.5, rank=3)


def test_only_what_this_request_asked_for_is_read():
    reader = LogprobReader(None)
    assert list(reader.entry(rows([5, 6, 7]), 0, 9, 1)) == [9, 5]
    assert list(reader.entry(rows([]), 0, 9, 0)) == [9]


def test_ids_are_python_ints():
    entry = LogprobReader(None).entry(rows([5]), 0, 9, 1)
    assert {type(token) for token in entry} == {int}


def test_the_text_is_that_inside_a_sentence(sentencepiece):
    reader = LogprobReader(sentencepiece)
    hello = sentencepiece.id("▁hello")
    assert reader.entry(rows([]), 0, hello, 0)[hello].decoded_token == " hello"
    assert reader.text(sentencepiece.id("<0xE2>")) == "\ufffd"

"""The bodies of answers, through a whole job with the deterministic engine."""

from __future__ import annotations


def _body(files, engine, line):
    files.write(line)
    (record,) = files.run(engine)
    assert record["error"] is None
    return record["response"]["body"]


def test_a_chat_completion(files, chat, make_engine):
    body = _body(files, make_engine(), chat("a", "hey", model="mine"))
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "mine"
    assert isinstance(body["created"], int)
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "HEY", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_chat_logprobs_list_the_best_without_the_token_unless_it_is_one(files, chat, make_engine):
    body = _body(files, make_engine(), chat("a", "h", logprobs=True, top_logprobs=1))
    token = {"token": "H", "logprob": -1.0, "bytes": [72]}
    best = {"token": "!", "logprob": -0.5, "bytes": [33]}
    assert body["choices"][0]["logprobs"] == {"content": [{**token, "top_logprobs": [best]}], "refusal": None}


def test_completions_number_prompts_and_their_n_through(files, completion, make_engine):
    body = _body(files, make_engine(), completion("a", ["x2", "y1"], n=2))
    assert body["object"] == "text_completion"
    assert body["model"] == "counting"
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "X2"), (1, "X2"), (2, "Y1"), (3, "Y1")]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (4, 8)


def test_echo_puts_the_prompt_first_even_if_it_was_token_ids(files, completion, make_engine):
    body = _body(files, make_engine(), completion("a", [[97, 98], [99]], echo=True))
    assert [c["text"] for c in body["choices"]] == ["abAB", "cC"]


def test_echo_with_logprobs_covers_the_prompt(files, completion, make_engine):
    body = _body(files, make_engine(), completion("a", "ab", echo=True, logprobs=1))
    assert body["choices"][0]["logprobs"] == {
        "text_offset": [0, 1, 2, 3],
        "tokens": ["a", "b", "A", "B"],
        "token_logprobs": [None, -2.0, -1.0, -1.0],
        "top_logprobs": [None, {"b": -2.0}, {"!": -0.5}, {"!": -0.5}],
    }


def test_scoring_gives_the_prompt_and_nothing_else(files, completion, make_engine):
    body = _body(files, make_engine(), completion("a", "ab", echo=True, logprobs=0, max_tokens=0))
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -2.0]
    assert (body["usage"]["completion_tokens"], body["usage"]["total_tokens"]) == (0, 2)

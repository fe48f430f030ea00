"""What a line may say, and what it is told when it says something else."""

from __future__ import annotations

import json

import pytest

from isoinfer.batch.line_error import LineError
from isoinfer.batch.reader import Line, open_line
from isoinfer.batch.request import ChatRequest, CompletionRequest, parse_request


def _parse(text):
    return parse_request(open_line(Line(number=3, raw=text.encode()), ""))


def _error(text) -> LineError:
    with pytest.raises(LineError) as caught:
        _parse(text)
    return caught.value


def test_a_chat_line_becomes_messages_and_params(chat):
    request = _parse(chat("a", "hi", model="m", max_completion_tokens=5, temperature=0.5, stop="x", top_k=4))
    assert isinstance(request, ChatRequest)
    assert request.messages == [{"role": "user", "content": "hi"}]
    assert (request.params.max_tokens, request.params.temperature, request.params.top_k) == (5, 0.5, 4)
    assert (request.params.stop, request.model) == ("x", "m")


def test_every_plain_sampling_field_reaches_the_params(completion):
    body = {
        "top_p": 0.5,
        "n": 2,
        "seed": 4,
        "presence_penalty": 0.25,
        "frequency_penalty": 0.5,
        "logit_bias": {"7": -1},
        "top_k": 3,
        "min_p": 0.125,
        "repetition_penalty": 1.5,
        "min_tokens": 2,
        "ignore_eos": True,
        "stop_token_ids": [9],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "allowed_token_ids": [1, 2],
        "bad_words": ["no"],
        "max_tokens": 12,
        "stop": ["a", "b"],
        "temperature": 2,
        "logprobs": 3,
    }
    params = _parse(completion("a", "x", **body)).params
    assert {name: getattr(params, name) for name in body} == body


def test_defaults_are_those_of_the_endpoints(chat, completion):
    assert _parse(chat("a", "hi")).params.max_tokens is None
    assert _parse(completion("a", "hi")).params.max_tokens == 16
    assert _parse(completion("a", "hi", max_tokens=None, temperature=None)).params.temperature == 1.0


@pytest.mark.parametrize(
    ("given", "prompts"),
    [("ab", ["ab"]), ([1, 2], [[1, 2]]), (["a", "b"], ["a", "b"]), ([[1], [2, 3]], [[1], [2, 3]]), ("", [""])],
)
def test_the_four_forms_of_a_prompt(completion, given, prompts):
    request = _parse(completion("a", given))
    assert isinstance(request, CompletionRequest)
    assert request.prompts == prompts


@pytest.mark.parametrize("given", [[], 1, None, {}, ["a", 1], [1, "a"], [[1], "a"], ["a", [1]], [True], [1.5], [[]]])
def test_any_other_prompt_is_an_error(completion, given):
    assert _error(completion("a", given)).code == "invalid_prompt"


def test_a_score_request_makes_one_token_that_is_dropped(completion):
    request = _parse(completion("a", "x", echo=True, max_tokens=0, logprobs=2))
    assert request.scores
    assert (request.params.max_tokens, request.params.prompt_logprobs) == (1, 2)
    assert "max_tokens" in str(_error(completion("a", "x", max_tokens=0)))


def test_chat_logprobs_are_a_switch_and_a_number(chat):
    assert _parse(chat("a", "x")).params.logprobs is None
    assert _parse(chat("a", "x", logprobs=True)).params.logprobs == 0
    assert _parse(chat("a", "x", logprobs=True, top_logprobs=3)).params.logprobs == 3
    assert _parse(chat("a", "x", logprobs=False, top_logprobs=0)).params.logprobs is None
    assert _error(chat("a", "x", top_logprobs=3)).param == "top_logprobs"


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ({"temprature": 1}, "unknown_parameter", "Did you mean 'temperature'?"),
        ({"temperature": "hot"}, "invalid_type", "temperature: Input should be a valid number, got 'hot'."),
        ({"n": True}, "invalid_type", "n: "),
        ({"max_tokens": 1.5}, "invalid_type", "max_tokens: "),
        ({"temperature": -1}, "invalid_value", "Use 0 for greedy"),
        ({"top_p": 0}, "invalid_value", "top_p"),
        ({"max_completion_tokens": 3, "max_tokens": 4}, "invalid_value", "differ"),
        ({"stream": True}, "not_supported", "stream=True"),
        ({"tools": [{"type": "function"}]}, "not_supported", "tools="),
        ({"response_format": {"type": "json_object"}}, "not_supported", "response_format="),
        ({"tool_choice": "required"}, "not_supported", "tool_choice="),
        ({"messages": []}, "invalid_type", "messages: "),
        ({"messages": "hi"}, "invalid_type", "messages: "),
        ({"messages": [{"role": "user", "content": "x", "nmae": "y"}]}, "unknown_parameter", "Did you mean 'name'?"),
        ({"messages": [{"content": "x"}]}, "invalid_messages", "messages[0]"),
        ({"messages": [{"role": "user"}]}, "invalid_messages", "messages[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "not_supported",
            "'image_url'",
        ),
        ({"chat_template_kwargs": {"tools": []}}, "invalid_value", "'tools'"),
    ],
)
def test_a_bad_chat_body_is_told_what_and_where(chat, body, code, said):
    error = _error(chat("a", "hi", **body))
    assert (error.code, error.status) == (code, 400)
    assert said in str(error)


@pytest.mark.parametrize("body", [{"suffix": "x"}, {"best_of": 2}, {"stream": 1}])
def test_what_completions_cannot_do_yet_is_refused(completion, body):
    assert _error(completion("a", "x", **body)).code == "not_supported"


def test_inert_and_irrelevant_settings_are_taken(chat, completion):
    _parse(completion("a", "x", suffix="", best_of=1, stream=False, user="u"))
    _parse(
        chat(
            "a",
            "x",
            stream=False,
            tools=[],
            tool_choice="auto",
            response_format={"type": "text"},
            metadata={"a": "b"},
            store=True,
            service_tier="auto",
            modalities=["text"],
        )
    )


def test_reasoning_effort_goes_to_the_template(chat):
    request = _parse(chat("a", "x", reasoning_effort="low", chat_template_kwargs={"deep": True}))
    assert request.template_kwargs == {"reasoning_effort": "low", "deep": True}


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"url": "/v1/chat/completion"}, "invalid_url", "Did you mean '/v1/chat/completions'?"),
        ({"url": 3}, "invalid_url", "got 3"),
        ({"method": "GET"}, "invalid_method", "'POST'"),
        ({"method": None}, "missing_required_parameter", "'method'"),
        ({"body": None}, "missing_required_parameter", "'body'"),
        ({"bodi": {}}, "unknown_parameter", "Did you mean 'body'?"),
    ],
)
def test_a_bad_line_has_no_response_and_names_its_number(completion, change, code, said):
    error = _error(json.dumps({**json.loads(completion("a", "x")), **change}))
    assert (error.code, error.status) == (code, None)
    assert "Line 3: " in str(error)
    assert said in str(error)


def test_a_body_that_is_no_object(completion):
    assert _error(json.dumps({**json.loads(completion("a", "x")), "body": [1]})).code == "invalid_type"

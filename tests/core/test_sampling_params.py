from __future__ import annotations

import math

import numpy as np
import pytest

from isoinfer.errors import RequestError
from isoinfer.sampling_params import SamplingParams

INVALID = [
    ({"n": 0}, "n must be at least 1"),
    ({"n": True}, "n must be an integer"),
    ({"n": 1.0}, "n must be an integer"),
    ({"temperature": -0.1}, "temperature must be finite and at least 0, got -0.1. Use 0 for greedy"),
    ({"temperature": math.nan}, "temperature must be finite"),
    ({"temperature": math.inf}, "temperature must be finite"),
    ({"temperature": 10**400}, "temperature must be finite"),
    ({"temperature": "1"}, "temperature must be a number, got '1' \\(str\\)"),
    ({"temperature": None}, "temperature must be a number"),
    ({"top_p": 0}, "top_p must be above 0 and at most 1, got 0. Use 1 to switch it off"),
    ({"top_p": 1.01}, "top_p must be"),
    ({"top_p": math.nan}, "top_p must be"),
    ({"top_k": -2}, "top_k must be at least -1"),
    ({"top_k": 0.5}, "top_k must be an integer"),
    ({"min_p": -1}, "min_p must be"),
    ({"min_p": 2}, "min_p must be"),
    ({"seed": 2**64}, "seed must be"),
    ({"seed": -(2**63) - 1}, "seed must be"),
    ({"seed": 1.5}, "seed must be an integer"),
    ({"max_tokens": 0}, "max_tokens must be at least 1, got 0. Leave it out to generate until the context is full"),
    ({"max_tokens": True}, "max_tokens must be an integer"),
    ({"min_tokens": -1}, "min_tokens must be at least 0"),
    ({"min_tokens": 17}, "min_tokens \\(17\\) is above max_tokens \\(16\\)"),
    ({"stop": ""}, "stop holds an empty string"),
    ({"stop": ["a", ""]}, "stop holds an empty string"),
    ({"stop": [1]}, "stop must hold strings, got 1"),
    ({"stop": 3}, "stop must be a list"),
    ({"stop": "x", "detokenize": False}, "stop strings need text"),
    ({"stop_token_ids": [-1]}, "each of stop_token_ids must be at least 0"),
    ({"stop_token_ids": [True]}, "each of stop_token_ids must be an integer"),
    ({"stop_token_ids": 5}, "stop_token_ids must be a list"),
    ({"ignore_eos": 1}, "ignore_eos must be True or False"),
    ({"skip_special_tokens": None}, "skip_special_tokens must be True or False"),
    ({"presence_penalty": 2.5}, "presence_penalty must be"),
    ({"frequency_penalty": -2.5}, "frequency_penalty must be"),
    ({"repetition_penalty": 0}, "repetition_penalty must be above 0 and at most 2"),
    ({"repetition_penalty": 2.5}, "repetition_penalty must be"),
    ({"logit_bias": {"5": 101}}, "logit_bias\\['5'\\] must be at least -100 and at most 100, got 101"),
    ({"logit_bias": {5: math.nan}}, "logit_bias\\[5\\]"),
    ({"logit_bias": [1]}, "logit_bias must map"),
    ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
    ({"bad_words": ["a", " "]}, "bad_words holds an empty string"),
    ({"bad_words": "word"}, "bad_words must be a list"),
    ({"logprobs": -1}, "logprobs must be at least 0 and at most 20"),
    ({"logprobs": True}, "logprobs must be an integer"),
    ({"prompt_logprobs": 21}, "prompt_logprobs must be"),
    ({"n": 2, "temperature": 0}, "n=2 greedy completions"),
]


@pytest.mark.parametrize(("values", "message"), INVALID, ids=lambda v: str(v)[:40])
def test_an_impossible_value_says_what_is_wrong(values, message):
    with pytest.raises(RequestError, match=message):
        SamplingParams(**values)
    if None not in values.values():
        with pytest.raises(RequestError, match=message):
            SamplingParams.from_dict(values)


def test_the_edges_of_each_range_are_allowed():
    SamplingParams(
        n=3, temperature=5, top_p=1, top_k=-1, min_p=1, seed=2**64 - 1, max_tokens=None, min_tokens=10**6,
        stop=["a"], stop_token_ids=(0,), presence_penalty=-2, frequency_penalty=2, repetition_penalty=2,
        logit_bias={"1": -100, 2: 100}, allowed_token_ids=[3], bad_words=["x"], logprobs=20, prompt_logprobs=0,
    )  # fmt: skip
    SamplingParams(seed=-(2**63), temperature=np.float32(0.5), top_k=np.int64(3))


def test_stop_strings_are_the_same_for_both_forms():
    assert SamplingParams(stop="ab").stop_strings == SamplingParams(stop=["ab"]).stop_strings == ("ab",)
    assert SamplingParams().stop_strings == ()


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (1e-6, True), (1e-4, False), (1.0, False)])
def test_a_vanishing_temperature_is_greedy(temperature, greedy):
    assert SamplingParams(temperature=temperature).is_greedy is greedy


def test_from_dict_takes_the_known_fields():
    assert SamplingParams.from_dict({"n": 2, "stop": "x", "max_tokens": None}) == SamplingParams(
        n=2, stop="x", max_tokens=None
    )


def test_from_dict_takes_null_as_unset_where_none_has_no_meaning():
    assert SamplingParams.from_dict({"temperature": None, "top_p": None}) == SamplingParams()


@pytest.mark.parametrize(
    ("name", "hint"), [("temprature", "Did you mean 'temperature'"), ("zzz", "Known fields: allowed_token_ids")]
)
def test_from_dict_names_the_nearest_field(name, hint):
    with pytest.raises(RequestError, match=f"Unknown sampling field '{name}'. {hint}"):
        SamplingParams.from_dict({name: 1})


def test_generation_config_gives_only_sampling_defaults():
    config = {"temperature": 0.6, "top_k": 20, "top_p": None, "bos_token_id": 1, "max_new_tokens": 7}
    assert SamplingParams.from_generation_config(config) == SamplingParams(temperature=0.6, top_k=20)
    assert SamplingParams.from_generation_config({"do_sample": False}).is_greedy

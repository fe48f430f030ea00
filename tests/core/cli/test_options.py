"""Options become keyword arguments and SamplingParams without loss."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest

from isoinfer.cli.options import EngineOptions, SamplingOptions
from isoinfer.errors import RequestError
from isoinfer.sampling_params import SamplingParams


def test_what_is_not_given_keeps_its_default():
    assert SamplingOptions().params() == SamplingParams()
    assert SamplingOptions().params(max_tokens=9) == SamplingParams(max_tokens=9)


def test_what_is_given_wins():
    options = SamplingOptions(max_tokens=3, stop=["a"], temperature=0.0, ignore_eos=True, top_k=0)
    expected = SamplingParams(max_tokens=3, stop=["a"], temperature=0.0, ignore_eos=True, top_k=0)
    assert options.params(max_tokens=9) == expected


def test_an_impossible_value_is_a_request_error():
    with pytest.raises(RequestError, match="top_p"):
        SamplingOptions(top_p=2.0).params()


def test_every_sampling_option_is_a_field_of_sampling_params():
    assert {f.name for f in fields(SamplingOptions)} <= {f.name for f in fields(SamplingParams)}


def test_engine_options_are_arguments_of_llm_with_its_defaults():
    from isoinfer.llm import LLM

    parameters = inspect.signature(LLM).parameters
    assert {name: parameters[name].default for name in EngineOptions().as_dict()} == EngineOptions().as_dict()

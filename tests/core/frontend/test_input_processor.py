from __future__ import annotations

import numpy as np
import pytest

from isoinfer.engine.messages import GREEDY_SEED
from isoinfer.errors import RequestError
from isoinfer.frontend.input_processor import InputProcessor, splitmix64
from isoinfer.sampling_params import SamplingParams

EOS = 7
VOCAB = 420


@pytest.fixture
def processor(byte_level) -> InputProcessor:
    return InputProcessor(byte_level, vocab_size=VOCAB, max_model_len=20, eos_token_ids=[EOS])


def sampling(processor, **params):
    return processor.process("r", [1, 2, 3], SamplingParams(**params))[0].sampling


def test_text_is_tokenised(processor, byte_level):
    (message,) = processor.process("r", "hello")
    assert message.request_id == "r"
    assert message.prompt_token_ids.dtype == np.int32
    assert message.prompt_token_ids.tolist() == byte_level.encode("hello")
    (plain,) = processor.process("r", "hello", add_special_tokens=False)
    assert plain.prompt_token_ids.tolist() == byte_level.encode("hello", add_special_tokens=False)


@pytest.mark.parametrize("prompt", [[5, 6], (5, 6), np.array([5, 6], np.int64)])
def test_token_ids_are_taken_as_they_are(processor, prompt):
    assert processor.process("r", prompt, priority=4)[0].prompt_token_ids.tolist() == [5, 6]
    assert processor.process("r", prompt, priority=4)[0].priority == 4


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "The prompt is empty"),
        ([], "The prompt is empty"),
        ([1, VOCAB, -1], f"2 token ids that this model does not have: {VOCAB}, -1. Use ids from 0 to {VOCAB - 1}"),
        ([1, 10**30], "text or a list of token ids"),
        ([1.5], "text or a list of token ids"),
        ([True, False], "text or a list of token ids"),
        ([[1], [2, 3]], "text or a list of token ids"),
        (["a"], "text or a list of token ids"),
        (None, "text or a list of token ids"),
        ("a\ud800", "character 1 is a lone surrogate"),
        ([1] * 20, "has 20 tokens, but the context \\(max_model_len\\) is 20 tokens .* Shorten the prompt to 19"),
    ],
)
def test_an_impossible_prompt_is_refused(processor, prompt, message):
    with pytest.raises(RequestError, match=message):
        processor.process("r", prompt)


def test_the_longest_prompt_leaves_one_token(processor):
    (message,) = processor.process("r", [1] * 19, SamplingParams(max_tokens=5, min_tokens=3))
    assert (message.sampling.max_tokens, message.sampling.min_tokens) == (1, 1)


@pytest.mark.parametrize(("max_tokens", "expected"), [(5, 5), (17, 17), (18, 17), (None, 17)])
def test_max_tokens_is_clipped_to_the_context(processor, max_tokens, expected):
    assert sampling(processor, max_tokens=max_tokens).max_tokens == expected


def test_fields_reach_the_core(processor):
    got = sampling(
        processor, temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, presence_penalty=0.2, frequency_penalty=0.3,
        repetition_penalty=1.1, min_tokens=2, logprobs=3, prompt_logprobs=0, allowed_token_ids=[4, 4, 9],
        logit_bias={"11": 2, 12: -100},
    )  # fmt: skip
    assert (got.temperature, got.top_p, got.top_k, got.min_p) == (0.5, 0.9, 0, 0.1)
    assert (got.presence_penalty, got.frequency_penalty, got.repetition_penalty) == (0.2, 0.3, 1.1)
    assert (got.min_tokens, got.num_logprobs, got.num_prompt_logprobs) == (2, 3, 0)
    assert got.allowed_token_ids == (4, 9)
    assert (got.bias_token_ids, got.bias_values) == ((11, 12), (2.0, -100.0))
    assert (sampling(processor).num_logprobs, sampling(processor).num_prompt_logprobs) == (-1, -1)


def test_eos_stops_unless_ignored(processor):
    assert sampling(processor).stop_token_ids == (EOS,)
    assert sampling(processor, stop_token_ids=[3, EOS]).stop_token_ids == (3, EOS)
    assert sampling(processor, stop_token_ids=[3], ignore_eos=True).stop_token_ids == (3,)


@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids"])
def test_ids_outside_the_vocabulary_are_refused(processor, field):
    with pytest.raises(RequestError, match=f"{field} has 1 token ids .*: {VOCAB}"):
        sampling(processor, **{field: [1, VOCAB]})


def test_every_invalid_bias_key_is_listed(processor):
    with pytest.raises(RequestError, match=r"no token ids of this model: 'x', 420, '1.5', True. Use integers from 0"):
        sampling(processor, logit_bias={"x": 1, 420: 1, "1.5": 1, "5": 1, True: 1})


def test_a_bad_word_is_forbidden_with_and_without_its_space(processor, byte_level):
    (first, second) = sampling(processor, bad_words=["capital"]).bad_words
    assert byte_level.decode(first) == "capital"
    assert byte_level.decode(second) == " capital"
    assert sampling(processor, bad_words=[" capital", "capital"]).bad_words == (first, second)


def test_a_given_seed_is_used_as_it_is(processor):
    assert sampling(processor, seed=5).seed == 5
    assert sampling(processor, seed=2**64 - 1).seed == -1
    assert sampling(processor, seed=-1).seed == -1


def test_without_a_seed_each_request_has_its_own(processor):
    seeds = {sampling(processor).seed for _ in range(50)}
    assert len(seeds) == 50
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)


def test_greedy_needs_no_entropy(processor):
    got = sampling(processor, temperature=1e-6)
    assert (got.seed, got.temperature) == (GREEDY_SEED, 0.0)


def test_children_have_distinct_reproducible_seeds(processor):
    params = SamplingParams(n=3, seed=42, prompt_logprobs=1)
    children = processor.process("r", [1, 2], params)
    assert [child.request_id for child in children] == ["r/0", "r/1", "r/2"]
    seeds = [child.sampling.seed for child in children]
    assert seeds == [child.sampling.seed for child in processor.process("other", [9], params)]
    assert len({*seeds, 42}) == 4
    assert [child.sampling.num_prompt_logprobs for child in children] == [1, -1, -1]


def test_splitmix64_gives_its_published_sequence():
    # The reference generator (Vigna) seeded with 1234567.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [splitmix64(1234567, i) for i in range(4)] == expected


def test_without_params_the_defaults_apply(byte_level):
    defaults = SamplingParams(temperature=0.25)
    processor = InputProcessor(byte_level, vocab_size=VOCAB, max_model_len=20, default_params=defaults)
    assert processor.default_params is defaults
    assert processor.process("r", [1])[0].sampling.temperature == 0.25


@pytest.mark.parametrize(
    ("prompt", "params"), [("hi", {}), ([1], {"stop": "x"}), ([1], {"bad_words": ["x"]})], ids=["text", "stop", "bad"]
)
def test_without_a_tokenizer_text_is_refused(prompt, params):
    processor = InputProcessor(None, vocab_size=VOCAB, max_model_len=20)
    assert processor.process("r", [1])[0].prompt_token_ids.tolist() == [1]
    with pytest.raises(RequestError, match="no tokenizer"):
        processor.process("r", prompt, SamplingParams(**params))

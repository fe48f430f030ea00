"""Request mixes: lengths as asked, the same from the same seed, a prefix that all share."""

from __future__ import annotations

import numpy as np
import pytest

from isoinfer.bench.mix import Range, RequestMix
from isoinfer.errors import UserError


@pytest.mark.parametrize(("text", "low", "high"), [("5", 5, 5), ("100-1024", 100, 1024), (" 3 - 4 ", 3, 4)])
def test_ranges_are_read(text, low, high):
    assert Range.parse(text, "--input-len") == Range(low, high)


@pytest.mark.parametrize("text", ["", "0", "0-5", "9-3", "-3", "a", "1-2-3", "1.5"])
def test_other_ranges_are_refused_with_an_example(text):
    with pytest.raises(UserError, match=r"^--input-len .* write for example 512 or 100-1024$"):
        Range.parse(text, "--input-len")


def make(**changes):
    return RequestMix(**{"num_prompts": 50, "input_len": Range(3, 9), "output_len": Range(1, 4), **changes})


def test_lengths_cover_their_ranges_and_no_more():
    requests = list(make().requests(100))
    assert {r.prompt_token_ids.size for r in requests} == set(range(3, 10))
    assert {r.sampling.max_tokens for r in requests} == {1, 2, 3, 4}
    assert len({r.request_id for r in requests}) == 50
    assert all(r.prompt_token_ids.dtype == np.int32 and r.prompt_token_ids.min() >= 0 for r in requests)
    assert max(int(r.prompt_token_ids.max()) for r in requests) == 99
    assert {(r.sampling.stop_token_ids, r.sampling.temperature) for r in requests} == {((), 0.0)}


def test_seeds_decide():
    texts = [[r.prompt_token_ids.tolist() for r in make(seed=seed).requests(100)] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_a_prefix_is_shared_and_counts():
    mix = make(prefix_len=20)
    assert mix.longest == 33
    assert len({tuple(r.prompt_token_ids[:20].tolist()) for r in mix.requests(100)}) == 1
    assert len({tuple(r.prompt_token_ids[20:].tolist()) for r in mix.requests(100)}) == 50

"""Sampling, interpreted: long rows with every filter, ties at the border of top-p, rows of -inf."""

from __future__ import annotations

import pytest

from isoinfer.backends.ops import LogitsSpec
from isoinfer.backends.ops.philox import SAMPLE_STREAM
from isoinfer.kernels_cuda import sample
from isoinfer.kernels_cuda.sample import SampleDesc


def test_filters_and_noise(interpreted: dict[str, list[str]]) -> None:
    assert interpreted["sample"] == []


@pytest.mark.parametrize("aligned", [True, False])
def test_parts_are_whole_groups_of_the_counter(aligned: bool) -> None:
    desc = SampleDesc(aligned=aligned)
    assert desc in list(sample.descriptions())
    assert sample.pick_config(desc).block_v % 4 == 0
    assert sample.case(desc).constants["STREAM"] == SAMPLE_STREAM


def test_a_vocabulary_that_float32_cannot_count_is_refused() -> None:
    assert "2^24" in sample.refuse(LogitsSpec(vocab_size=1 << 24))
    assert sample.refuse(LogitsSpec(vocab_size=(1 << 24) - 1)) == ""

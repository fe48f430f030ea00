"""Sampling on Ascend, interpreted; and the cases that gates compile."""

from __future__ import annotations

from isoinfer.backends.ops import LogitsSpec
from isoinfer.kernels_ascend import sample


def test_filters_and_noise(interpreted: dict[str, list[str]]) -> None:
    assert interpreted["sample"] == []


def test_parts_are_whole_groups_of_the_counter() -> None:
    assert all(sample.pick_config(desc).block_v % 4 == 0 for desc in sample.descriptions())


def test_a_vocabulary_that_float32_cannot_count_is_refused() -> None:
    assert "2^24" in sample.refuse(LogitsSpec(vocab_size=1 << 24))
    assert sample.refuse(LogitsSpec(vocab_size=(1 << 24) - 1)) == ""

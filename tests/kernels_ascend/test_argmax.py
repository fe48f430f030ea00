"""Argmax on Ascend, interpreted; and the cases that gates compile."""

from __future__ import annotations

from isoinfer.backends.ops import LogitsSpec
from isoinfer.kernels_ascend import argmax


def test_ties_infinities_and_parts(interpreted: dict[str, list[str]]) -> None:
    assert interpreted["argmax"] == []


def test_one_case_a_kernel_serves_every_vocabulary() -> None:
    assert [case.name for case in argmax.cases()] == ["argmax_kernel", "best_part_kernel"]
    assert argmax.refuse(LogitsSpec(vocab_size=50_257)) == ""

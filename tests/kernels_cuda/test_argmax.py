"""Argmax, interpreted; and the cases that gates compile."""

from __future__ import annotations

import pytest

from isoinfer.backends.ops import LogitsSpec
from isoinfer.kernels_cuda import argmax
from isoinfer.kernels_cuda.argmax import ArgmaxDesc


def test_ties_infinities_and_parts(interpreted: dict[str, list[str]]) -> None:
    assert interpreted["argmax"] == []


@pytest.mark.parametrize("aligned", [True, False])
def test_cases_promise_divisible_sizes_only_where_rows_are_aligned(aligned: bool) -> None:
    case = argmax.case(ArgmaxDesc(aligned=aligned))
    assert case.key in {listed.key for listed, _ in argmax.cases(90)}
    assert dict(case.signature)["vocab_size"] == ("i32:16" if aligned else "i32")


def test_every_vocabulary_is_served() -> None:
    assert argmax.refuse(LogitsSpec(vocab_size=200_064)) == argmax.refuse(LogitsSpec(vocab_size=50_257)) == ""

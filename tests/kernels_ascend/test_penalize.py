"""Penalties on Ascend, interpreted; and the cases that gates compile."""

from __future__ import annotations

from isoinfer.backends.ops import LogitsSpec
from isoinfer.kernels_ascend import penalize


def test_long_histories(interpreted: dict[str, list[str]]) -> None:
    assert interpreted["penalize"] == []


def test_the_prompt_is_counted_by_a_case_of_its_own() -> None:
    assert [case.constants.get("PROMPT") for case in penalize.cases()] == [True, False, None]
    assert penalize.refuse(LogitsSpec(vocab_size=50_257)) == ""

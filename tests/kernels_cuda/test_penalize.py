"""Penalties, interpreted: long histories, each kind of penalty alone."""

from __future__ import annotations

from isoinfer.backends.ops import LogitsSpec
from isoinfer.kernels_cuda import penalize


def test_long_histories(interpreted: dict[str, list[str]]) -> None:
    assert interpreted["penalize"] == []


def test_both_alignments_are_listed_and_every_vocabulary_is_served() -> None:
    assert len({penalize.case(desc).key for desc in penalize.descriptions()}) == 2
    assert penalize.refuse(LogitsSpec(vocab_size=50_257)) == ""

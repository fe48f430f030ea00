"""Log-probabilities, interpreted: parts, ties, banned tokens; and what does not fit."""

from __future__ import annotations

import pytest

from isoinfer.backends.ops import LogprobsSpec
from isoinfer.kernels_cuda import logprobs
from isoinfer.kernels_cuda.logprobs import MAX_KEYS, MAX_NUM, MergeDesc


def test_parts_and_ties(interpreted: dict[str, list[str]]) -> None:
    assert interpreted["logprobs"] == []


@pytest.mark.parametrize("num_keys", [0, 1, 1024, 1025, MAX_KEYS])
def test_keys_fit_and_every_case_is_listed(num_keys: int) -> None:
    desc = MergeDesc(num_keys=num_keys)
    assert logprobs.pick_merge_config(desc).block_k >= num_keys
    assert logprobs.merge_case(desc).key in {case.key for case, _ in logprobs.cases(90)}


@pytest.mark.parametrize(
    ("vocab_size", "num", "served"),
    [(200_064, 20, True), (200_064, MAX_NUM, True), (200_064, MAX_NUM + 1, False), (1_000_000, 100, False)],
)
def test_many_alternatives_are_refused(vocab_size: int, num: int, served: bool) -> None:
    assert (logprobs.refuse(LogprobsSpec(vocab_size=vocab_size, num=num)) == "") == served

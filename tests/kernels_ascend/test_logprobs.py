"""Log-probabilities on Ascend, interpreted; and the case that gates compile."""

from __future__ import annotations

from isoinfer.backends.ops import LogprobsSpec
from isoinfer.kernels_ascend import logprobs


def test_several_parts_ties_and_rows_in_any_order(interpreted: dict[str, list[str]]) -> None:
    assert interpreted["logprobs"] == []


def test_one_case_serves_every_vocabulary_that_float32_can_count() -> None:
    (case,) = [logprobs.case(desc) for desc in logprobs.descriptions()]
    assert list(case.constants) == ["BLOCK_V"]
    assert logprobs.refuse(LogprobsSpec(vocab_size=151_936, num=20)) == ""
    assert "2^24 tokens" in logprobs.refuse(LogprobsSpec(vocab_size=1 << 24, num=0))

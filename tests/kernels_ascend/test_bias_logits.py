"""Biases on Ascend, interpreted; and the cases that gates compile."""

from __future__ import annotations

from isoinfer.backends.ops import LogitsSpec
from isoinfer.kernels_ascend import bias_logits


def test_repeats_add_up_across_blocks(interpreted: dict[str, list[str]]) -> None:
    assert interpreted["bias_logits"] == []


def test_one_case_serves_every_list() -> None:
    assert len([bias_logits.case(desc) for desc in bias_logits.descriptions()]) == 1
    assert bias_logits.refuse(LogitsSpec(vocab_size=50_257)) == ""

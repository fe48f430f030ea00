"""The bitmask on Ascend, interpreted; and the cases that gates compile."""

from __future__ import annotations

from isoinfer.backends.ops import LogitsSpec
from isoinfer.kernels_ascend import mask_logits


def test_parts_and_an_odd_tail(interpreted: dict[str, list[str]]) -> None:
    assert interpreted["mask_logits"] == []


def test_one_case_serves_every_vocabulary() -> None:
    assert len([mask_logits.case(desc) for desc in mask_logits.descriptions()]) == 1
    assert mask_logits.refuse(LogitsSpec(vocab_size=50_257)) == ""

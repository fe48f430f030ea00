"""The bitmask, interpreted; and its cases."""

from __future__ import annotations

from isoinfer.backends.ops import LogitsSpec
from isoinfer.kernels_cuda import mask_logits


def test_parts_and_an_odd_tail(interpreted: dict[str, list[str]]) -> None:
    assert interpreted["mask_logits"] == []


def test_parts_are_whole_words_and_every_vocabulary_is_served() -> None:
    assert all(mask_logits.pick_config(desc).block_v % 32 == 0 for desc in mask_logits.descriptions())
    assert len({mask_logits.case(desc).key for desc in mask_logits.descriptions()}) == 2
    assert mask_logits.refuse(LogitsSpec(vocab_size=50_257)) == ""

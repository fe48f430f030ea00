"""Biases, interpreted: a list longer than a block, with repeats far apart."""

from __future__ import annotations

from isoinfer.backends.ops import LogitsSpec
from isoinfer.kernels_cuda import bias_logits
from isoinfer.kernels_cuda.bias_logits import BiasDesc


def test_repeats_add_up_across_blocks(interpreted: dict[str, list[str]]) -> None:
    assert interpreted["bias_logits"] == []


def test_one_case_serves_every_list() -> None:
    assert list(bias_logits.descriptions()) == [BiasDesc()]
    assert bias_logits.refuse(LogitsSpec(vocab_size=50_257)) == ""

"""Attention's bits under `--deterministic` (one interpreted run, see conftest.py), and what it refuses.

Its numbers: tests/backends/cuda/test_create.py.
"""

from __future__ import annotations

import pytest

from isoinfer.backends.ops import AttentionSpec
from isoinfer.kernels_cuda import paged_attention


def test_a_prompt_has_the_same_bits_however_it_is_cut_and_whatever_runs_beside_it(bits: dict[str, list[str]]) -> None:
    assert bits["paged_attention"] == []


def test_the_usual_form_would_be_seen(bits: dict[str, list[str]]) -> None:
    assert bits["paged_attention without --deterministic"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 40}, "a head dim of 40 is not a multiple of 16 up to 256"),
        ({"num_heads": 34, "dtype": "float32"}, "17 query heads share a KV head, and 16 are served in float32"),
        ({"softcap": 1.0, "has_sinks": True}, "softcap and sinks together"),
        ({"block_size": 24}, "a KV block of 24 is not a multiple of 16"),
    ],
    ids=["head", "group", "softcap-sinks", "block"],
)
def test_what_it_refuses(changes: dict[str, object], reason: str) -> None:
    fields = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, "scale": 1.0, "block_size": 64, "window": None}
    fields |= {"softcap": None, "has_sinks": False, "dtype": "bfloat16"} | changes
    assert reason in paged_attention.refuse(AttentionSpec(**fields))  # type: ignore[arg-type]

"""Attention in one form: tiles, and bits however a prompt is cut (one interpreted run, see conftest.py).

Its numbers: tests/gates/test_interpreted_ascend.py.
"""

from __future__ import annotations

import pytest

from isoinfer.kernels_ascend import paged_attention
from isoinfer.kernels_ascend.paged_attention import MAX_GROUP, AttentionDesc


@pytest.mark.parametrize("dtype", paged_attention.DTYPES)
def test_tiles_lie_in_one_block_hold_every_group_and_are_all_listed(dtype: str) -> None:
    listed = {paged_attention.case(desc).key for desc in paged_attention.descriptions()}
    for head_dim in (16, 40, 64, 80, 96, 128, 192, 256):
        desc = AttentionDesc(head_dim=head_dim, block_size=128, softcap=False, sinks=False, dtype=dtype)
        config = paged_attention.pick_config(desc)
        assert config.block_m >= MAX_GROUP
        assert config.block_d >= head_dim
        assert 128 % config.block_s == 0
        assert paged_attention.case(desc).key in listed


def test_a_prompt_has_the_same_bits_however_it_is_cut_and_whatever_runs_beside_it(bits: dict[str, list[str]]) -> None:
    assert bits["paged_attention"] == []

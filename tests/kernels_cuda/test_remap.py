"""Remap, interpreted: more rows than a program holds, the most drafts; and the cases that gates compile."""

from __future__ import annotations

from isoinfer.backends.ops import RemapSpec
from isoinfer.kernels_cuda import remap
from isoinfer.kernels_cuda.remap import MAX_DRAFTS, RemapDesc


def test_rows_fill_several_programs(interpreted: dict[str, list[str]]) -> None:
    assert interpreted["remap"] == []


def test_all_drafts_of_a_row_fit_and_are_listed() -> None:
    listed = {remap.case(desc).key for desc in remap.descriptions()}
    for num_drafts in range(MAX_DRAFTS + 1):
        config = remap.pick_config(RemapDesc(num_drafts=num_drafts))
        assert config.block_j > num_drafts
        assert config.block_r >= 1
        assert config.drafts == (num_drafts > 0)
        assert remap.case(RemapDesc(num_drafts=num_drafts)).key in listed


def test_more_drafts_than_a_tile_holds_are_refused() -> None:
    assert remap.refuse(RemapSpec(num_drafts=MAX_DRAFTS)) == ""
    assert remap.refuse(RemapSpec(num_drafts=MAX_DRAFTS + 1)) == "more than 63 drafts a row: 64"

"""Remap on Ascend, interpreted: more rows than cores, the most drafts; and the cases that gates compile."""

from __future__ import annotations

from isoinfer.backends.ops import RemapSpec
from isoinfer.kernels_ascend import remap
from isoinfer.kernels_ascend.remap import MAX_DRAFTS, RemapDesc


def test_cores_take_several_rows(interpreted: dict[str, list[str]]) -> None:
    assert interpreted["remap"] == []


def test_all_drafts_of_a_row_are_one_copy_and_both_cases_are_listed() -> None:
    assert remap.pick_config(RemapDesc(drafts=True)).block_j > MAX_DRAFTS
    listed = {remap.case(desc).key for desc in remap.descriptions()}
    assert listed == {remap.case(RemapDesc(drafts=drafts)).key for drafts in (False, True)}


def test_more_drafts_than_a_copy_holds_are_refused() -> None:
    assert remap.refuse(RemapSpec(num_drafts=MAX_DRAFTS)) == ""
    assert remap.refuse(RemapSpec(num_drafts=MAX_DRAFTS + 1)) == "more than 63 drafts a row: 64"

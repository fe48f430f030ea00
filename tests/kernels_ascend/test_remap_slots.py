"""Slots of mapped rows on Ascend, interpreted: more rows than cores; and the case that gates compile."""

from __future__ import annotations

from isoinfer.backends.ops import RemapSlotsSpec
from isoinfer.kernels_ascend import remap_slots


def test_cores_take_several_rows(interpreted: dict[str, list[str]]) -> None:
    assert interpreted["remap_slots"] == []


def test_one_case_serves_every_block_size() -> None:
    assert len([remap_slots.case(desc) for desc in remap_slots.descriptions()]) == 1
    assert remap_slots.refuse(RemapSlotsSpec(block_size=128)) == ""

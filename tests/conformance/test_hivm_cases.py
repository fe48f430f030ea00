"""The stored table names every Ascend kernel case with the source that it was compiled from."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("triton")

from isoinfer.backends.ascend.soc import Soc
from isoinfer.conformance.hivm import TABLE, too_large
from isoinfer.conformance.hivm_cases import CHIPS, cases_for, source_hash
from isoinfer.kernels_ascend import paged_attention, rope, rope_kv_write


@pytest.mark.parametrize("soc", CHIPS, ids=lambda soc: soc.name)
def test_the_stored_table_is_of_these_sources(soc: Soc) -> None:
    rows = json.loads(TABLE.read_text())["targets"][soc.target]
    now = {key: source_hash(case) for key, case in cases_for(soc).items()}
    assert {key: row["source"] for key, row in rows.items()} == now, "run scripts/check-ascend --update"
    if soc.name == "950":
        assert all(row["ub_bits"] is None or row["ub_bits"] <= soc.ub_bytes * 8 for row in rows.values())


def test_every_case_has_its_kernels_arguments() -> None:
    for soc in CHIPS:
        for case in cases_for(soc).values():
            assert [*(name for name, _ in case.signature), *case.constants] == case.kernel.arg_names, case.name


def test_the_hash_follows_helpers_and_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    case = rope_kv_write.case(next(rope_kv_write.descriptions()))
    before = source_hash(case)
    assert source_hash(replace(case, options={"num_warps": 1})) == before, "options are in the case's key"
    monkeypatch.setattr(rope_kv_write, "rotate_heads", rope_kv_write.copy_rest)
    assert source_hash(case) != before
    attention = paged_attention.case(next(paged_attention.descriptions()))
    before = source_hash(attention)
    monkeypatch.setattr(paged_attention, "HIDDEN", paged_attention.LOG2_E)
    assert source_hash(attention) != before
    assert too_large(attention).key != attention.key
    assert source_hash(rope.case(next(rope.descriptions()))) != before

"""The stored table is compared with what is compiled, and results are kept for equal content."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton")

from isoinfer.conformance.compiled_table import compile_claims, differences, faults, read_table, write_table
from isoinfer.conformance.cubin import MAX_SHARED, Cubin
from isoinfer.conformance.kernel_files import claims
from isoinfer.kernels_cuda import silu_mul

CUBIN = Cubin(kernel="k", key="k-1", target=100, registers=32, spill=0, shared=128, evidence=("tma",))
OTHER = replace(CUBIN, key="k-2", evidence=())


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_table(tmp_path / "table.json", [OTHER, CUBIN])
    assert read_table(tmp_path / "table.json")[1] == [CUBIN, OTHER]


def test_equal_tables_do_not_differ() -> None:
    assert differences([CUBIN, OTHER], [OTHER, CUBIN]) == []


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ([replace(CUBIN, registers=33), OTHER], "stale: "),
        ([replace(CUBIN, evidence=()), OTHER], "stale: "),
        ([CUBIN], "k-2 sm_100: not in the table"),
        ([CUBIN, OTHER, replace(OTHER, target=90)], "k-2 sm_90: in the table, but no case"),
        ([CUBIN, OTHER, OTHER], "the table has rows twice"),
    ],
)
def test_each_difference_is_named(table: list[Cubin], said: str) -> None:
    (found,) = differences(table, [CUBIN, OTHER])
    assert found.startswith(said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spill": 8}, ["spills 8 bytes"]),
        ({"shared": MAX_SHARED + 1}, [f"{MAX_SHARED + 1} bytes of shared memory, more than {MAX_SHARED}"]),
        ({"shared": MAX_SHARED, "evidence": ("tcgen05",)}, []),
        ({"evidence": ()}, ["no tcgen05 in the code"]),
        ({"evidence": ("tma",)}, ["no tcgen05 in the code"]),
    ],
)
def test_each_fault_is_named(change: dict[str, object], said: list[str]) -> None:
    claim = replace(claims(silu_mul, 100)[0], evidence=frozenset({"tcgen05"}))
    cubin = replace(CUBIN, key=claim.case.key, **({"evidence": ("tcgen05",)} | change))  # type: ignore[arg-type]
    assert faults([cubin], [claim]) == [f"{claim.case.key} sm_100: {line}" for line in said]


def test_results_are_kept_and_errors_told(tmp_path: Path) -> None:
    """In worker processes. A kept result is not compiled again."""
    claim = claims(silu_mul, 90)[0]
    absent = replace(claim, index=99, case=replace(claim.case, options={"num_warps": 2}))
    told: list[tuple[int, int]] = []
    (cubin,), errors = compile_claims([claim, absent], tmp_path, processes=1, tell=lambda *at: told.append(at))
    assert (cubin.key, cubin.target, cubin.spill) == (claim.case.key, 90, 0)
    assert [line.partition(": ")[0] for line in errors] == [f"{absent.case.key} sm_90"]
    assert told == [(1, 2), (2, 2)]
    (kept,) = tmp_path.glob("*.json")
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"registers": 999}))
    assert compile_claims([claim], tmp_path) == ([replace(cubin, registers=999)], [])

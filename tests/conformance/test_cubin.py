"""Compiled code is measured: spills, shared memory, and the instructions that are in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("triton")

from isoinfer.conformance.compiled_table import faults, read_table
from isoinfer.conformance.cubin import MAX_SHARED, Cubin, content_hash
from isoinfer.conformance.kernel_files import Claim
from isoinfer.kernels_cuda import gather_rows, silu_mul

SCRIPT = Path(__file__).with_name("compile_faulty.py")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Cubin]:
    """What `compile_faulty.py` compiles, in a process in which kernels can be compiled."""
    table = tmp_path_factory.mktemp("cubin") / "table.json"
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(table)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return read_table(table)[1]


def test_resources_and_evidence_are_read_from_the_code(measured: Sequence[Cubin]) -> None:
    copy, hopper, blackwell, wasteful, spilling = (
        next(c for c in measured if c.kernel == "copy_kernel"),
        next(c for c in measured if c.kernel == "product_kernel" and c.target == 90 and c.shared <= MAX_SHARED),
        next(c for c in measured if c.target == 100),
        next(c for c in measured if c.shared > MAX_SHARED),
        next(c for c in measured if c.kernel == "spilling_kernel"),
    )
    assert (copy.spill, copy.shared, copy.evidence) == (0, 0, ())
    assert 0 < copy.registers < 64
    assert hopper.evidence == ("wgmma",)
    assert blackwell.evidence == ("tcgen05",)
    assert hopper.spill == blackwell.spill == wasteful.spill == 0
    assert spilling.spill > 0


def test_the_faults_are_those_of_the_faulty_kernels(measured: Sequence[Cubin]) -> None:
    claim = Claim(
        module="", index=0, case=silu_mul.case(next(silu_mul.descriptions())), target=90, evidence=frozenset()
    )
    found = faults(measured, [claim])
    assert len(found) == 2
    assert [line.partition("-")[0] for line in found if "spills" in line] == ["spilling_kernel"]
    assert [line.partition("-")[0] for line in found if "shared memory" in line] == ["product_kernel"]


def test_the_hash_is_of_code_case_and_target() -> None:
    gather, silu = (list(module.cases(90)) for module in (gather_rows, silu_mul))
    hashes = [content_hash(case, target) for case, _ in (*gather, *silu) for target in (90, 100)]
    assert len(set(hashes)) == len(hashes)
    assert content_hash(gather[0][0], 90) == hashes[0]

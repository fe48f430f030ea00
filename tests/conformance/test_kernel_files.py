"""Every file of a package is asked for its cases, and a kernel without one is named."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("triton")

from isoinfer import kernels_cuda
from isoinfer.conformance.cubin import INSTRUCTIONS, TARGETS
from isoinfer.conformance.kernel_files import claims, kernels, modules, uncovered

KERNEL = """
import triton
from isoinfer.kernels_cuda.gather_rows import cases, gather_rows_kernel

@triton.jit
def lonely_kernel(x_ptr):
    pass

@triton.jit
def helper(x):
    return x
"""


@pytest.mark.parametrize("target", TARGETS)
def test_every_cuda_kernel_has_cases(target: int) -> None:
    assert uncovered(kernels_cuda, target) == []


def test_claims_are_of_known_evidence_and_differ() -> None:
    found = [claim for module in modules(kernels_cuda) for target in TARGETS for claim in claims(module, target)]
    assert len({(claim.case.key, claim.target) for claim in found}) == len(found) > 500
    assert set().union(*(claim.evidence for claim in found)) == set(INSTRUCTIONS)
    for claim in found:
        names = [*(name for name, _ in claim.case.signature), *claim.case.constants]
        assert names == claim.case.kernel.arg_names, claim.case.name


def test_a_kernel_without_a_case_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case of another file's kernel does not count."""
    package = tmp_path / "left_out_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text(KERNEL)
    monkeypatch.syspath_prepend(tmp_path)
    found = uncovered(import_module(package.name), 90)
    assert kernels(sys.modules["left_out_kernels.one"]) == {"lonely_kernel"}
    assert found == ["left_out_kernels.one: no case of lonely_kernel"]

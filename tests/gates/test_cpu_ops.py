"""Every provider of the CPU backend, op by op, against the float64 truth, over many seeds."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.evidence import check_claims
from isoinfer.backends.ops import ALL_OPS
from isoinfer.backends.registry import create_backend
from isoinfer.conformance.op_cases import run_op_cases

pytestmark = pytest.mark.gate

# One thread, since torch's own team is slow on small shapes when the cores are busy; two in a configuration of its own.
CONFIGS = {
    "native": BackendConfig(threads=1, options={"linear": "native"}),
    "onednn": BackendConfig(threads=1, options={"linear": "onednn"}),
    "torch": BackendConfig(threads=1, options={"native": "off"}),
    "thread-stream": BackendConfig(threads=1, options={"stream": "thread"}),
    "deterministic": BackendConfig(threads=1, deterministic=True),
    "torch-deterministic": BackendConfig(threads=1, options={"native": "off"}, deterministic=True),
    "two-threads": BackendConfig(threads=2),
}
DTYPES = (torch.float32, torch.bfloat16)
SEEDS = {"two-threads": range(5)}


@pytest.fixture(scope="module")
def passed() -> set[tuple[str, str]]:
    """(op, provider) of every case that passed in this run."""
    return set()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_case_runs_and_passes(name: str, passed: set[tuple[str, str]]) -> None:
    """The elementwise and the row bounds hold for every seed."""
    backend, seeds = create_backend("cpu", CONFIGS[name]), SEEDS.get(name, range(25))
    results = [result for seed in seeds for result in run_op_cases(backend, dtypes=DTYPES, seed=seed)]
    passed |= {(result.op, result.provider) for result in results if result.status == "passed"}
    assert {result.op for result in results} == set(ALL_OPS)
    assert not Counter(f"{r.id} by {r.provider}: {r.reason}" for r in results if r.status != "passed")


def test_the_kernels_are_there_where_they_can_be_built() -> None:
    """Otherwise the cases above would quietly test torch's ops only."""
    backend = create_backend("cpu", BackendConfig(threads=1))
    if "torch's own ops" in " ".join(backend.describe()):
        pytest.skip(f"no native kernels on this machine: {backend.describe()[-1]}")
    providers = {result.provider for result in run_op_cases(backend, dtypes=(torch.float32,))}
    assert "native" in providers


def test_what_is_claimed_was_executed(passed: set[tuple[str, str]]) -> None:
    """On a machine that builds our kernels: elsewhere their claims cannot be shown."""
    if not any(provider == "native" for _, provider in passed):
        pytest.skip("our kernels were not built here, so this run shows only torch's part")
    check_claims("cpu", "device", passed)

"""Whole engine steps of every model family on fake tensors of "cuda": calls, types, shapes, and no wait for the device.

A kernel launch is checked against the table of compiled cases. Evidence: schema-checked.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from isoinfer.backends.evidence import check_claims
from isoinfer.backends.interface import Backend
from isoinfer.conformance.compiled_table import read_table
from isoinfer.conformance.fake_cuda import fake_cuda, register_guard
from isoinfer.conformance.fake_step import FAMILIES, FakeRun, FakeRuntime, LaunchChecker, run_family

pytestmark = pytest.mark.gate

TABLE = Path(__file__).parents[2] / "kernels_cuda/compiled.json"
EVERY_MODEL = {"add_rms_norm", "embedding", "gather_rows", "paged_attention", "rms_norm", "rope_kv_write"}
SAMPLING = {"argmax", "bias_logits", "logprobs", "mask_logits", "penalize", "sample"}
CHIPS = {"sm_90": 90, "sm_100": 100, "sm_103": 103}


def _run(family: str, chip: str, compiled: frozenset[str] | None, *, deterministic: bool = False) -> FakeRun:
    register_guard()
    runtime, launcher = FakeRuntime(torch.device("cuda")), LaunchChecker(compiled)

    def backend() -> Backend:
        return fake_cuda(chip, runtime, launcher, deterministic=deterministic)

    return run_family(FAMILIES[family], runtime, backend, launcher, "aten")


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_every_step_fits_and_never_waits(family: str, chip: str, deterministic: bool) -> None:
    _, rows = read_table(TABLE)
    table = frozenset(row.key for row in rows if row.target == CHIPS[chip])
    ran = _run(family, chip, table, deterministic=deterministic)
    assert {op for op, provider in ran.providers.items() if provider == "triton"} >= EVERY_MODEL | SAMPLING
    forms = ("linear", "attention_prefill") if deterministic else ("attention_decode", "attention_prefill")
    for op in ("argmax", "rms_norm", "add_rms_norm", "rope_kv_write", *forms):
        assert any(kernel.startswith(op) for kernel in ran.kernels), f"{op} never ran: {ran.kernels}"
    by_torch = {op for op, provider in ran.providers.items() if provider != "triton"}
    assert by_torch <= {"moe_route", "moe_experts", *(() if deterministic else ("linear",))}


def test_what_is_claimed_is_what_the_steps_used() -> None:
    """Kernels only: what torch serves needs no table."""
    forms = itertools.product(FAMILIES, (False, True))
    used = {
        pair
        for family, deterministic in forms
        for pair in _run(family, "sm_100", None, deterministic=deterministic).providers.items()
    }
    check_claims("cuda", "schema-checked", {(op, provider) for op, provider in used if provider == "triton"})


def test_a_kernel_that_is_not_in_the_table_is_seen() -> None:
    with pytest.raises(AssertionError, match="is not in the compiled table"):
        _run("llama", "sm_90", frozenset())


def test_a_wait_for_the_device_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's attention reads lengths on the host; it must not pass where our kernels are refused."""
    monkeypatch.setattr("isoinfer.kernels_cuda.paged_attention.MAX_HEAD_DIM", 16)
    register_guard()
    runtime, launcher = FakeRuntime(torch.device("cuda")), LaunchChecker(None)
    with pytest.raises(AssertionError, match=r"brings a tensor to the host"):
        run_family(FAMILIES["llama"], runtime, lambda: fake_cuda("sm_90", runtime, launcher), launcher, "aten")

"""Claims are read, refused in a wrong form, and compared with what a gate executed; the CPU's are true."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from isoinfer.backends import evidence
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.evidence import Evidence, check_claims, evidence_of, parse_evidence, served
from isoinfer.backends.ops import ALL_OPS
from isoinfer.backends.plugin_source import find_sources
from isoinfer.backends.registry import create_backend
from isoinfer.conformance.op_cases import run_op_cases

ROOT = Path(__file__).parents[2]
TEXT = json.dumps(
    {
        "compiled": {"by": "tests/gates/test_c.py", "served": {"rms_norm": ["kernel"]}},
        "interpreted": {"by": "tests/gates/test_i.py", "served": {"rms_norm": ["kernel", "torch"], "rope": ["torch"]}},
    }
)
IN_TREE = [source.name for source in find_sources() if source.in_tree]


@pytest.fixture
def chip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A backend called "chip" whose package holds the claims above; the file."""
    package = tmp_path / f"isotest_{uuid.uuid4().hex}"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "evidence.json").write_text(TEXT)
    monkeypatch.syspath_prepend(str(tmp_path))
    source = SimpleNamespace(name="chip", value=f"{package.name}.plugin")
    single = SimpleNamespace(name="single", value="isotest_single")
    monkeypatch.setattr(evidence, "find_sources", lambda: [single, source])
    return package / "evidence.json"


def test_words_come_strongest_first(chip: Path) -> None:
    found = evidence_of("chip")
    assert found.words("rms_norm", "kernel") == ["interpreted", "compiled"]
    assert found.words("rms_norm", "torch") == ["interpreted"]
    assert found.words("rope", "kernel") == []
    assert found.providers("rms_norm") == ["kernel", "torch"]


def test_a_backend_without_claims_has_no_evidence(chip: Path) -> None:
    chip.unlink()
    assert evidence_of("chip") == evidence_of("single") == evidence_of("unknown") == Evidence()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"guessed": {}}', "'guessed' is no evidence; the words are device, emulated, interpreted"),
        ('{"device": {"served": {}}}', "device must have exactly `by` and `served`, not served"),
        ('{"device": {"by": "x", "served": {}, "ops": 1}}', "not by, ops, served"),
    ],
)
def test_another_form_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_evidence(text)


def test_a_gate_that_executed_what_is_claimed_passes(chip: Path) -> None:
    check_claims("chip", "interpreted", {("rms_norm", "kernel"), ("rms_norm", "torch"), ("rope", "torch")})
    check_claims("chip", "compiled", [("rms_norm", "kernel"), ("rms_norm", "kernel")])


@pytest.mark.parametrize(
    ("word", "executed", "message"),
    [
        ("compiled", [], "chip: nothing was executed, so nothing is compiled"),
        (
            "interpreted",
            [("rms_norm", "kernel"), ("rope", "torch")],
            "not executed rms_norm by torch; not claimed none",
        ),
        ("compiled", [("rms_norm", "kernel"), ("rope", "kernel")], "not executed none; not claimed rope by kernel"),
        ("emulated", [("rope", "kernel")], "not executed none; not claimed rope by kernel"),
    ],
)
def test_a_gate_that_executed_something_else_fails(chip: Path, word: str, executed: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_claims("chip", word, executed)


def test_the_failure_shows_what_to_write(chip: Path) -> None:
    executed = {("rope", "kernel"), ("add", "torch"), ("add", "kernel")}
    with pytest.raises(AssertionError) as failure:
        check_claims("chip", "device", executed)
    shown = json.loads(str(failure.value).partition("Right is\n")[2])
    assert shown == served(executed) == {"add": ["kernel", "torch"], "rope": ["kernel"]}


def test_a_word_that_does_not_exist_is_a_programmer_error(chip: Path) -> None:
    with pytest.raises(AssertionError, match="guessed"):
        check_claims("chip", "guessed", {("rope", "torch")})


@pytest.mark.parametrize("name", IN_TREE)
def test_claims_in_the_tree_name_ops_and_what_shows_them(name: str) -> None:
    for claim in evidence_of(name).claims:
        shown_by = ROOT / claim.by
        assert shown_by.is_file(), f"{claim.by} is not there"
        assert shown_by.suffix != ".py" or "check_claims(" in shown_by.read_text(encoding="utf-8"), claim.by
        assert {op for op, _ in claim.served} <= set(ALL_OPS)


def test_the_cpu_s_claims_are_what_runs_here() -> None:
    """One seed of what the gate runs many of. Without our kernels, the rest of the claims must still hold."""
    options = ({"linear": "native"}, {"linear": "onednn"}, {"native": "off"})
    backends = [create_backend("cpu", BackendConfig(threads=1, options=choice)) for choice in options]
    dtypes = (torch.float32, torch.bfloat16)
    results = [result for backend in backends for result in run_op_cases(backend, dtypes=dtypes)]
    passed = {(result.op, result.provider) for result in results if result.status == "passed"}
    claimed = {pair for claim in evidence_of("cpu").claims for pair in claim.served}
    if any("torch's own ops" in line for line in backends[0].describe()):
        assert passed == {pair for pair in claimed if pair[1] != "native"}
    else:
        assert passed == claimed

"""The Ascend backend's engine steps against torch_npu's real operator schemas, in an environment of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from isoinfer.backends.evidence import check_claims

pytestmark = pytest.mark.gate

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "kernels_ascend/compiled.json"
FAMILIES = {"llama", "qwen2", "qwen3", "qwen3-moe", "gpt-oss"}
FUSED = {
    "rms_norm": "npu_rms_norm",
    "add_rms_norm": "npu_add_rms_norm",
    "silu_mul": "npu_swiglu",
    "swiglu_clipped": "npu_clipped_swiglu",
    "rope": "npu_rotary_mul",
    "kv_write": "npu_scatter_pa_kv_cache",
    "paged_attention": "npu_fused_infer_attention_score_v2",
    "moe_route": "npu_moe_gating_top_k",
    "moe_experts": "npu_grouped_matmul",
}
"""The operator that an op must have called where torch_npu is said to serve it."""


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """What `scripts/check-npu-schema` prints."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is needed to make stub CANN libraries")
    if not version("torch").startswith("2.13.0"):
        pytest.skip(f"torch-npu 2.13.0 needs torch 2.13.0, this is {version('torch')}")
    done = subprocess.run([str(ROOT / "scripts/check-npu-schema")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    parsed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return parsed


def test_the_emulation_has_the_real_signatures(report: dict[str, Any]) -> None:
    assert report["signatures"] == []


@pytest.mark.parametrize("run", ["910B-bfloat16", "910C-bfloat16", "950-bfloat16", "910B-float32"])
def test_every_family_runs_its_steps(report: dict[str, Any], run: str) -> None:
    families = report["runs"][run]
    assert set(families) == FAMILIES
    for family, used in families.items():
        print(
            f"\nschema-checked, {run} {family}: {', '.join(used['operators'])}; launches {', '.join(used['kernels'])}"
        )
        for op, provider in used["providers"].items():
            assert provider != "torch_npu" or op not in FUSED or FUSED[op] in used["operators"], (op, used)
        if run.endswith("bfloat16"):
            assert used["providers"]["paged_attention"] == "torch_npu"


@pytest.mark.parametrize("run", ["910B-deterministic", "950-deterministic"])
def test_under_deterministic_kernels_serve_every_family_alone(report: dict[str, Any], run: str) -> None:
    families = report["runs"][run]
    assert set(families) == FAMILIES
    for family, used in families.items():
        assert used["operators"] == [], family
        assert set(used["providers"].values()) == {"triton"}
        assert {"linear_kernel", "paged_attention_kernel"} <= set(used["kernels"])


def test_what_is_claimed_was_called(report: dict[str, Any]) -> None:
    runs = [used for families in report["runs"].values() for used in families.values()]
    seen = {name for used in runs for name in used["operators"]}
    fused = {(op, "torch_npu") for op, operator in FUSED.items() if operator in seen}
    pairs = {pair for used in runs for pair in used["providers"].items()}
    check_claims("ascend", "schema-checked", fused | {(op, provider) for op, provider in pairs if provider == "triton"})


def test_launched_cases_are_in_the_compiled_table(report: dict[str, Any]) -> None:
    if not TABLE.is_file():
        pytest.skip("there is no kernels_ascend/compiled.json")
    assert report["compiled"] is not None

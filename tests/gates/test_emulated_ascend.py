"""The Ascend backend over emulated torch_npu operators: every op case, and SmolLM2 through `--backend ascend`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isoinfer import LLM, SamplingParams
from isoinfer.backends.ascend import create, plugin
from isoinfer.backends.descriptor import BackendConfig, DeviceInfo
from isoinfer.backends.evidence import check_claims
from isoinfer.backends.ops import ALL_OPS
from isoinfer.conformance.emulated import EmulatedAscend, emulated_ascend
from isoinfer.conformance.op_cases import run_op_cases
from isoinfer.outputs import RequestOutput

pytestmark = pytest.mark.gate

QUESTIONS = ("What is the capital of France?", "Name three colours.", "What is 2 + 2?", "Who wrote Hamlet?")
NEW_TOKENS = 24
TIE = 0.25
"""Log-probabilities that bfloat16 cannot tell apart: some ulps of logits of about 20."""
SEEDS = range(4)


@pytest.fixture(scope="module")
def executed() -> Iterator[set[tuple[str, str]]]:
    """What passed, by (op, provider); at the end it must be what the backend claims."""
    passed: set[tuple[str, str]] = set()
    yield passed
    check_claims("ascend", "emulated", passed)


@pytest.mark.parametrize("chip", ["910B", "910C", "950"])
def test_every_case_runs_and_passes(chip: str, executed: set[tuple[str, str]]) -> None:
    emulated = emulated_ascend(chip, BackendConfig())
    results = [result for seed in SEEDS for result in run_op_cases(emulated.backend, seed=seed)]
    assert {result.op for result in results} == set(ALL_OPS)
    quantised = {r.id for r in results if r.status == "unsupported"}
    assert all(name.startswith(("linear[int8", "linear[int4")) for name in quantised)
    assert not Counter(f"{r.id} by {r.provider}: {r.reason}" for r in results if r.status == "failed")
    executed |= {(r.op, r.provider) for r in results if r.status == "passed" and r.provider == "torch_npu"}
    served = {result.op for result in results if result.provider == "torch_npu"}
    print(f"\nemulated, {chip}: {len(results) - len(quantised)} cases, torch_npu's operators serve {sorted(served)}")
    assert served >= {"rms_norm", "add_rms_norm", "silu_mul", "kv_write", "paged_attention", "moe_route", "moe_experts"}


@pytest.fixture(scope="module")
def gguf() -> str:
    root = Path(__file__).resolve().parents[2]
    found = subprocess.run(
        [sys.executable, str(root / "scripts/demo-model")], capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.skip(found.stderr.strip())
    return found.stdout.strip()


def ask(gguf: str, backend: str, **settings: Any) -> list[RequestOutput]:
    """Greedy answers in bfloat16, with the best tokens of every place; chunks mix prefill and decode."""
    llm = LLM(
        gguf, backend=backend, dtype="bfloat16", threads=1, max_model_len=256, max_num_batched_tokens=48, **settings
    )
    conversations = [[{"role": "user", "content": question}] for question in QUESTIONS]
    sampling = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=8)
    return llm.chat(conversations, sampling)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> list[EmulatedAscend]:
    """`--backend ascend` finds one emulated NPU. What is created is kept for the test."""
    made: list[EmulatedAscend] = []

    def make(device: DeviceInfo, config: BackendConfig) -> Any:
        made.append(emulated_ascend("910B", BackendConfig(dtype=config.dtype)))
        return made[-1].backend

    there = [DeviceInfo(id="0", description="Ascend 910B, emulated", score=0)]
    monkeypatch.setattr(plugin, "probe_ascend", lambda: there)
    monkeypatch.setattr(create, "create", make)
    return made


def test_smollm2_says_what_it_says_on_the_cpu(gguf: str, emulated: list[EmulatedAscend]) -> None:
    ours, theirs = ask(gguf, "ascend"), ask(gguf, "cpu")
    calls = emulated[0].npu.calls
    assert calls["npu_fused_infer_attention_score_v2"] > 0
    assert "Paris" in ours[0].outputs[0].text
    ties, wrong = [], []
    for question, our, their in zip(QUESTIONS, ours, theirs, strict=True):
        pairs = zip(our.outputs[0].token_ids, their.outputs[0].token_ids, strict=True)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if at is not None:
            best = their.outputs[0].logprobs[at]
            gap = best[their.outputs[0].token_ids[at]].logprob - best[our.outputs[0].token_ids[at]].logprob
            (ties if gap < TIE else wrong).append(f"{question!r}: token {at}, {gap:.3f} apart")
    equal = len(QUESTIONS) - len(ties) - len(wrong)
    print(f"\nemulated: {equal} of {len(QUESTIONS)} answers are equal; ties: {ties or 'none'}; operators: {calls}")
    assert wrong == []
    eager = ask(gguf, "ascend", enforce_eager=True)
    assert [o.outputs[0].token_ids for o in eager] == [o.outputs[0].token_ids for o in ours], "graphs change tokens"
    assert emulated[1].npu.calls["npu_fused_infer_attention_score_v2"] > 0


def test_the_script_for_people_with_an_npu_runs_dry() -> None:
    """Emulated and small, through the script's own installation; nothing is stored."""
    root = Path(__file__).resolve().parents[2]
    before = sorted((root / "benchmarks/results").iterdir())
    env = os.environ | {"PYTHON": sys.executable, "PYTHONWARNINGS": "ignore"}
    command = [root / "scripts/device_check_ascend.sh", "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "0 failed" in done.stdout
    assert "llama: 3 of 3 answers equal the CPU's" in done.stdout
    assert "executed_on: emulated" in done.stdout
    assert sorted((root / "benchmarks/results").iterdir()) == before

"""The CUDA backend without a GPU: assumed, where it answers; and interpreted, where its kernels compute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from isoinfer.backends.cuda.create import assume
from isoinfer.backends.cuda.providers import KERNELS
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.ops import ALL_OPS, LINEAR, RMS_NORM, NormSpec
from isoinfer.errors import BackendError

TRITON_OPS = {*KERNELS, "paged_attention"}
PROGRAM = """
import json
from collections import defaultdict
import torch
from isoinfer.backends.ops import ALL_OPS
from isoinfer.conformance.interpreted import interpreted_cuda
from isoinfer.conformance.op_cases import run_op_cases

backend = interpreted_cuda("sm_90")
providers, wrong = defaultdict(set), []
for result in run_op_cases(backend, dtypes=(torch.float32,)):
    if result.status == "passed":
        providers[result.op].add(result.provider)
    elif result.reason not in ("torch: no int8 weights here yet", "torch: no int4 weights here yet"):
        wrong.append(f"{result.id}: {result.reason}")
print(json.dumps({"providers": {op: sorted(names) for op, names in providers.items()}, "wrong": wrong}))
"""


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (BackendConfig(assume="sm_90", dtype="float64"), "computes in bfloat16, float16, float32, not float64"),
        (BackendConfig(assume="sm_90", options={"a": "b"}), "has no options, got a"),
        (BackendConfig(assume="sm_90", deterministic=True), "not batch-invariant"),
        (BackendConfig(assume="hopper"), "knows no chip 'hopper' to assume"),
    ],
)
def test_what_cannot_be_is_refused(config: BackendConfig, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        assume(config)


def test_an_assumed_chip_answers_for_every_op_and_computes_none() -> None:
    backend = assume(BackendConfig(assume="sm_100"))
    assert backend.info.id == "sm_100"
    for op in ALL_OPS.values():
        answers = {backend.support(op, sample.static).provider for sample in op.samples(torch.float32, 0)}
        assert ("triton" in answers) == (op.name in TRITON_OPS), op.name
    norm = backend.bind(RMS_NORM, NormSpec(hidden_size=64, eps=1e-5, dtype="float32"))
    with pytest.raises(BackendError, match="only assumed"):
        norm(torch.empty(1, 64), torch.empty(64))


def test_matrix_products_are_not_declared_batch_invariant() -> None:
    backend = assume(BackendConfig(assume="sm_90"))
    sample = next(iter(LINEAR.samples(torch.bfloat16, 0)))
    assert not backend.support(LINEAR, sample.static).batch_invariant


@pytest.mark.skipif(sys.platform != "linux", reason="triton is for Linux")
def test_every_kernel_computes_what_its_op_says_under_the_interpreter() -> None:
    """One seed in float32; `make gates` runs more."""
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["wrong"] == []
    assert set(result["providers"]) == set(ALL_OPS)
    assert {op for op, names in result["providers"].items() if "triton" in names} == TRITON_OPS

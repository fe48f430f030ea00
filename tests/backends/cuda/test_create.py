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
from isoinfer.backends.cuda.providers import KERNEL_OPS
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.ops import ALL_OPS, LINEAR, LOGPROBS, MOE_ROUTE, RMS_NORM, LogprobsSpec, NormSpec, RouteSpec
from isoinfer.errors import BackendError

SUMMING = {"linear", "paged_attention", "rms_norm", "add_rms_norm", "sample", "logprobs"}
PROGRAM = """
import json
from collections import defaultdict
import torch
from isoinfer.backends.ops import ALL_OPS, LINEAR
from isoinfer.conformance.interpreted import interpreted_cuda
from isoinfer.conformance.op_cases import run_op_cases

results = run_op_cases(interpreted_cuda("sm_90"), dtypes=[torch.float32])
results += run_op_cases(interpreted_cuda("sm_90", deterministic=True), ops=[LINEAR], dtypes=[torch.float32])
providers, wrong = defaultdict(set), []
for result in results:
    if result.status == "passed":
        providers[result.op].add(result.provider)
    elif "triton: no int8 weights here yet" not in result.reason and "no int4 weights here yet" not in result.reason:
        wrong.append(f"{result.id}: {result.reason}")
print(json.dumps({"providers": {op: sorted(names) for op, names in providers.items()}, "wrong": wrong}))
"""


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (BackendConfig(assume="sm_90", dtype="float64"), "computes in bfloat16, float16, float32, not float64"),
        (BackendConfig(assume="sm_90", options={"a": "b"}), r"no option a=b; it has flashinfer=after\|before"),
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
        assert ("triton" in answers) == (op.name in KERNEL_OPS - {"linear"}), op.name
    norm = backend.bind(RMS_NORM, NormSpec(hidden_size=64, eps=1e-5, dtype="float32"))
    with pytest.raises(BackendError, match="only assumed"):
        norm(torch.empty(1, 64), torch.empty(64))


def test_the_usual_products_and_attention_are_not_declared_batch_invariant() -> None:
    backend = assume(BackendConfig(assume="sm_90"))
    assert not backend.capabilities.bitwise_deterministic
    for name in ("linear", "moe_experts", "paged_attention"):
        sample = next(iter(ALL_OPS[name].samples(torch.bfloat16, 0)))
        assert not backend.support(ALL_OPS[name], sample.static).batch_invariant


def test_deterministic_serves_every_op_by_what_is_batch_invariant() -> None:
    backend = assume(BackendConfig(assume="sm_100", deterministic=True))
    assert backend.capabilities.bitwise_deterministic
    assert any("deterministic" in line for line in backend.describe())
    for op in ALL_OPS.values():
        for sample in op.samples(torch.bfloat16, 0):
            answer = backend.support(op, sample.static)
            if answer.status == "supported":
                assert answer.batch_invariant or op.name == "verify_rejection", op.name  # torch sums it
                assert answer.provider == "triton" or op.name not in SUMMING, (op.name, sample.label)
            elif op.name in KERNEL_OPS:  # no quantised weights, and what kernels do not take torch may not
                assert sample.label.startswith(("int8", "int4")) or "is not a multiple of 16" in answer.reason
    torchs = backend.supports(LINEAR, next(iter(LINEAR.samples(torch.bfloat16, 0))).static)[1]
    assert (torchs.provider, torchs.status) == ("torch", "unsupported")
    assert "--deterministic" in torchs.reason


def test_deterministic_refuses_what_only_torch_could_sum() -> None:
    backend = assume(BackendConfig(assume="sm_100", deterministic=True))
    with pytest.raises(BackendError, match=r"129 best tokens are more than 128.*torch: a row's bits"):
        backend.bind(LOGPROBS, LogprobsSpec(vocab_size=512, num=129))
    route = RouteSpec(num_experts=64, top_k=33, kind="softmax_topk", renormalize=True, dtype="bfloat16")
    with pytest.raises(BackendError, match="summed in an order that rows change"):
        backend.bind(MOE_ROUTE, route)
    assert assume(BackendConfig(assume="sm_100")).support(MOE_ROUTE, route).provider == "torch"


@pytest.mark.skipif(sys.platform != "linux", reason="triton is for Linux")
def test_every_kernel_computes_what_its_op_says_under_the_interpreter() -> None:
    """One seed in float32; `make gates` runs more."""
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["wrong"] == []
    assert set(result["providers"]) == set(ALL_OPS)
    assert {op for op, names in result["providers"].items() if "triton" in names} == KERNEL_OPS

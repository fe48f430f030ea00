"""The order of providers, and why the ones before the chosen refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isoinfer.backends.ascend.create import assume
from isoinfer.backends.ascend.providers import kernel_module
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.ops import (
    ADD_RMS_NORM,
    ALL_OPS,
    KV_WRITE,
    LINEAR,
    MOE_EXPERTS,
    RMS_NORM,
    ROPE,
    ROPE_KV_WRITE,
    SAMPLE,
    KVWriteSpec,
    LinearSpec,
    LogitsSpec,
    NormSpec,
    RopeKVWriteSpec,
    RopeSpec,
)
from isoinfer.conformance.emulated import NO_KERNELS, emulated_ascend

NEEDS_TRITON = pytest.mark.skipif(isinstance(kernel_module("linear"), str), reason="triton is not installed")
NORM = NormSpec(hidden_size=64, eps=1e-6, dtype="bfloat16")


@pytest.fixture(scope="module")
def backend() -> Any:
    return emulated_ascend("910B", BackendConfig()).backend


def test_fused_operators_come_first_then_kernels_then_torch(backend: Any) -> None:
    providers = [answer.provider for answer in backend.supports(RMS_NORM, NORM)]
    assert providers == ["torch_npu", *(["triton"] if kernel_module("rms_norm") else []), "torch"]
    assert backend.support(RMS_NORM, NORM).provider == "torch_npu"
    assert not backend.support(RMS_NORM, NORM).batch_invariant
    assert "torch" not in [answer.provider for answer in backend.supports(ADD_RMS_NORM, NORM)]


def test_kernels_say_why_they_are_not_there(backend: Any) -> None:
    reasons = {answer.reason for answer in backend.supports(SAMPLE, LogitsSpec(vocab_size=10))}
    assert any("has no min-p" in reason for reason in reasons)
    assert kernel_module("sample") is None or NO_KERNELS in reasons


@pytest.mark.parametrize(("dtype", "provider"), [("float32", "torch_npu"), ("bfloat16", "torch")])
def test_rope_is_fused_only_where_angles_keep_their_precision(backend: Any, dtype: str, provider: str) -> None:
    spec = RopeSpec(head_dim=64, rotary_dim=64, interleaved=False, dtype=dtype)
    assert backend.support(ROPE, spec).provider == provider
    fused = RopeKVWriteSpec(rope=spec, num_kv_heads=2, head_dim=64, block_size=128, dtype=dtype)
    assert backend.support(ROPE_KV_WRITE, fused).provider == "composed"
    write = KVWriteSpec(num_kv_heads=2, head_dim=64, block_size=128, dtype=dtype)
    assert backend.support(KV_WRITE, write).provider == "torch_npu"


def test_quantised_weights_are_refused(backend: Any) -> None:
    spec = LinearSpec(in_features=32, out_features=8, bias=False, quant="int8", dtype="bfloat16", out_dtype="bfloat16")
    assert "no int8 weights here yet" in backend.support(LINEAR, spec).reason


def test_every_op_has_an_answer(backend: Any) -> None:
    for op in ALL_OPS.values():
        assert backend.supports(op, next(iter(op.samples(torch.bfloat16, 0))).static)


def plain_linear() -> LinearSpec:
    return LinearSpec(in_features=64, out_features=64, bias=False, quant=None, dtype="bfloat16", out_dtype="bfloat16")


def test_products_are_torchs_unless_rows_may_not_depend_on_the_batch(backend: Any) -> None:
    assert backend.support(LINEAR, plain_linear()).provider == "torch"
    assert not backend.support(LINEAR, plain_linear()).batch_invariant


@NEEDS_TRITON
def test_products_are_ours_where_they_may_not() -> None:
    invariant = assume(BackendConfig(assume="950", deterministic=True)).support(LINEAR, plain_linear())
    assert (invariant.provider, invariant.batch_invariant) == ("triton", True)


@NEEDS_TRITON
@pytest.mark.parametrize("deterministic", [False, True])
def test_experts_are_as_batch_invariant_as_their_parts(deterministic: bool) -> None:
    backend = assume(BackendConfig(assume="950", deterministic=deterministic))
    (spec, *_) = (sample.static for sample in MOE_EXPERTS.samples(torch.bfloat16, 0))
    claims = {answer.provider: answer.batch_invariant for answer in backend.supports(MOE_EXPERTS, spec)}
    assert claims == {"torch_npu": False, "triton": deterministic, "torch": deterministic}


@NEEDS_TRITON
def test_under_deterministic_whatever_serves_is_batch_invariant() -> None:
    backend = assume(BackendConfig(assume="910B", deterministic=True))
    refused = set()
    for op in ALL_OPS.values():
        samples = op.samples if op.paged_samples is None else lambda *args, op=op: op.paged_samples(*args, 128)
        for sample in samples(torch.bfloat16, 0):
            support, answers = backend.support(op, sample.static), backend.supports(op, sample.static)
            fused = [answer.reason for answer in answers if answer.provider == "torch_npu"]
            assert all("which --deterministic rules out" in reason for reason in fused)
            if support.status == "supported":
                assert support.batch_invariant, op.name
                assert support.provider == ("torch" if kernel_module(op.name) is None else "triton")
            elif getattr(sample.static, "quant", None) is None:
                refused.add(op.name)
    rounds = {op.name for op in ALL_OPS.values() if op.error.kind != "exact"}
    assert refused == {name for name in rounds if kernel_module(name) is None}
    assert refused.isdisjoint(op.name for op in ALL_OPS.values() if op.required)

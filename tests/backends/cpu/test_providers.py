"""Who serves what, and what a provider says when it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from isoinfer.backends.cpu.native_library import NativeLibrary
from isoinfer.backends.cpu.providers import CPU_SHAPED, CpuProviders
from isoinfer.backends.ops import (
    ALL_OPS,
    LINEAR,
    PAGED_ATTENTION,
    RMS_NORM,
    ROPE_KV_WRITE,
    AttentionSpec,
    LinearSpec,
    NormSpec,
    RopeKVWriteSpec,
    RopeSpec,
)
from isoinfer.backends.ops.logprobs import LOGPROBS, LogprobsSpec
from isoinfer.backends.provider import ProviderTable
from isoinfer.errors import BackendError


def attention(**changes: Any) -> AttentionSpec:
    fields = {
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 32,
        "scale": 1.0,
        "block_size": 16,
        "window": None,
        "softcap": None,
        "has_sinks": False,
        "dtype": "float32",
    }
    return AttentionSpec(**{**fields, **changes})


def linear(**changes: Any) -> LinearSpec:
    fields = {"in_features": 64, "out_features": 8, "bias": False, "quant": None}
    return LinearSpec(**{**fields, "dtype": "float32", "out_dtype": "float32", **changes})


class Kernels:
    """A library in which every kernel exists; nothing is called."""

    def __getattr__(self, name: str) -> Any:
        return type("Kernel", (), {})()


def table(*, bfloat16: bool = True, use_onednn: bool = False, deterministic: bool = False) -> ProviderTable:
    native = NativeLibrary(library=Kernels(), reason="", bfloat16=bfloat16)
    return table_of(native, deterministic=deterministic, use_onednn=use_onednn)


def table_of(native: NativeLibrary, **choices: bool) -> ProviderTable:
    """The table that a CPU backend with `native` answers from."""

    def bind(op: Any, static: Any) -> Any:
        return providers.bind(op, static)

    providers = ProviderTable("cpu", CpuProviders(native, bind=bind, **choices).find, fallback="fail")
    return providers


def answers(providers: ProviderTable, op: Any, static: Any) -> dict[str, str]:
    return {answer.provider: answer.reason for answer in providers.supports(op, static)}


def test_without_kernels_torch_serves_and_the_reason_is_passed_on() -> None:
    none = table_of(NativeLibrary(library=None, reason="no compiler"), deterministic=False, use_onednn=True)
    static = NormSpec(hidden_size=8, eps=1e-5, dtype="float32")
    assert answers(none, RMS_NORM, static) == {"native": "no compiler", "torch": ""}
    assert none.bind(RMS_NORM, static) is not None


@pytest.mark.parametrize(
    ("op", "static", "providers", "reason"),
    [
        (PAGED_ATTENTION, attention(head_dim=40), {}, "multiple of 16"),
        (PAGED_ATTENTION, attention(block_size=32), {}, "hold 16 tokens, not 32"),
        (PAGED_ATTENTION, attention(dtype="float16"), {}, "float16 is not one of float32, bfloat16"),
        (PAGED_ATTENTION, attention(dtype="bfloat16"), {"bfloat16": False}, "AVX512_BF16"),
        (LINEAR, linear(dtype="bfloat16", in_features=51), {}, "even number of input features"),
        (LINEAR, linear(quant="int8", in_features=51), {}, "even number of input features"),
        (LINEAR, linear(quant="int4", in_features=48), {}, "multiple of 32 input features"),
        (LINEAR, linear(quant="int8"), {"bfloat16": False}, "int8 kernels need AVX512_BF16"),
        (LINEAR, linear(), {"use_onednn": True}, "oneDNN was faster"),
        (LINEAR, linear(dtype="float16"), {}, "float16 is not one of"),
        (LOGPROBS, LogprobsSpec(vocab_size=100, num=65), {}, "up to 64 best"),
    ],
)
def test_refusals_say_why(op: Any, static: Any, providers: dict[str, Any], reason: str) -> None:
    assert reason in answers(table(**providers), op, static)["native"]


@pytest.mark.parametrize(
    ("static", "providers"),
    [
        (linear(in_features=51), {}),
        (linear(), {"bfloat16": False}),
        (linear(quant="int8"), {"use_onednn": True}),
        (linear(dtype="bfloat16"), {"use_onednn": True}),  # float32 results, which oneDNN would round first
    ],
)
def test_what_our_linear_takes_nevertheless(static: LinearSpec, providers: dict[str, Any]) -> None:
    assert answers(table(**providers), LINEAR, static)["native"] == ""


def test_only_deterministic_torch_products_claim_batch_invariance() -> None:
    for deterministic in (False, True):
        providers = table(deterministic=deterministic)
        for op, static in ((LINEAR, linear()), (PAGED_ATTENTION, attention())):
            claims = {a.provider: a.batch_invariant for a in providers.supports(op, static)}
            assert claims == {"native": True, "torch": deterministic}


def test_ops_in_the_cpus_own_shapes_are_never_given_to_the_reference() -> None:
    assert set(ALL_OPS) > CPU_SHAPED
    rope = RopeSpec(head_dim=16, rotary_dim=16, interleaved=False, dtype="float32")
    fused = RopeKVWriteSpec(rope=rope, num_kv_heads=1, head_dim=16, block_size=16, dtype="float32")
    assert set(answers(table(), ROPE_KV_WRITE, fused)) == {"native"}
    assert set(answers(table(), PAGED_ATTENTION, attention())) == {"native", "torch"}


def test_a_fused_op_without_a_kernel_is_composed_and_says_so(open_backend: Any) -> None:
    rope = RopeSpec(head_dim=16, rotary_dim=16, interleaved=False, dtype="float32")
    fused = RopeKVWriteSpec(rope=rope, num_kv_heads=1, head_dim=16, block_size=16, dtype="float32")
    support = open_backend(native="off").support(ROPE_KV_WRITE, fused)
    assert (support.status, support.provider) == ("supported", "composed")
    assert "native=off" in support.reason
    strict = open_backend(native="off", fallback="fail")
    assert strict.support(ROPE_KV_WRITE, fused).status == "unsupported"
    with pytest.raises(BackendError, match=r"cannot serve rope_kv_write .*native=off"):
        strict.bind(ROPE_KV_WRITE, fused)


def test_what_nobody_serves_is_refused_with_every_reason(open_backend: Any) -> None:
    static = attention(dtype="float16")
    support = open_backend(native="off").support(PAGED_ATTENTION, static)
    assert support.status == "unsupported"
    assert "native: " in support.reason
    assert "torch: dtype float16" in support.reason
    with pytest.raises(BackendError, match="dtype float16"):
        open_backend(native="off").bind(PAGED_ATTENTION, static)

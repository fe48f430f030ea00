"""The table of providers: order, refusals, fallbacks, and kernels that cannot be built."""

from __future__ import annotations

from typing import Any

import pytest

from isoinfer.backends.ops import (
    LINEAR,
    RMS_NORM,
    SILU_MUL,
    SWIGLU_CLIPPED,
    ActivationSpec,
    NormSpec,
    SwigluClippedSpec,
)
from isoinfer.backends.provider import KernelError, Provider, ProviderTable
from isoinfer.errors import BackendError

NORM = NormSpec(hidden_size=8, eps=1e-5, dtype="float32")
CLIPPED = SwigluClippedSpec(intermediate_size=8, alpha=1.0, limit=7.0, dtype="float32")


def provider(name: str, refusal: str = "", error: str = "", **fields: Any) -> Provider:
    def make(static: Any) -> Any:
        if error:
            raise KernelError(error)
        return name

    return Provider(name=name, refuse=lambda static: refusal, make=make, **fields)


def table(*providers: Provider, fallback: str = "composed") -> ProviderTable:
    return ProviderTable("chip", lambda op: providers, fallback=fallback)


def test_the_first_that_accepts_serves() -> None:
    providers = table(provider("kernel", "too odd"), provider("library"), provider("torch"))
    assert providers.bind(RMS_NORM, NORM) == "library"
    assert providers.support(RMS_NORM, NORM).provider == "library"
    assert [(a.provider, a.status, a.reason) for a in providers.supports(RMS_NORM, NORM)] == [
        ("kernel", "unsupported", "too odd"),
        ("library", "supported", ""),
        ("torch", "supported", ""),
    ]


def test_what_a_provider_declares_is_in_its_answer() -> None:
    declared = provider("kernel", accumulate_dtype="tf32", deterministic=False, batch_invariant=False, graph_safe=True)
    answer = table(declared).support(RMS_NORM, NORM)
    assert (answer.accumulate_dtype, answer.deterministic, answer.batch_invariant, answer.graph_safe) == (
        "tf32",
        False,
        False,
        True,
    )


def test_batch_invariance_that_is_asked_for_refuses_what_has_none() -> None:
    found = [provider("library", batch_invariant=False), provider("kernel", error="no such instruction")]
    found.append(provider("torch"))
    asked = ProviderTable("chip", lambda op: found, fallback="composed", batch_invariant=True)
    with pytest.warns(UserWarning, match="kernel rms_norm cannot be built"):
        assert asked.bind(RMS_NORM, NORM) == "torch"
    assert "--deterministic rules out" in asked.supports(RMS_NORM, NORM)[0].reason
    assert table(*found).support(RMS_NORM, NORM).provider == "library"


def test_an_op_that_nobody_serves_is_composed_where_it_can_be() -> None:
    refused = table(provider("kernel", "too odd"))
    assert refused.support(SWIGLU_CLIPPED, CLIPPED).provider == "composed"
    assert callable(refused.bind(SWIGLU_CLIPPED, CLIPPED))
    strict = table(provider("kernel", "too odd"), fallback="fail")
    with pytest.raises(BackendError, match=r"chip cannot serve swiglu_clipped.*kernel: too odd"):
        strict.bind(SWIGLU_CLIPPED, CLIPPED)
    with pytest.raises(BackendError, match=r"chip cannot serve rms_norm.*kernel: too odd"):
        refused.bind(RMS_NORM, NORM)


def test_a_kernel_that_cannot_be_built_is_passed_over_loudly_and_refuses_from_then_on() -> None:
    providers = table(provider("kernel", error="no such instruction"), provider("torch"))
    assert providers.support(RMS_NORM, NORM).provider == "kernel"
    with pytest.warns(UserWarning, match="chip: kernel rms_norm cannot be built: no such instruction"):
        assert providers.bind(RMS_NORM, NORM) == "torch"
    assert providers.support(RMS_NORM, NORM).provider == "torch"
    reason = providers.supports(RMS_NORM, NORM)[0].reason
    assert reason == "its kernel cannot be built here: no such instruction"
    other = ActivationSpec(intermediate_size=8, dtype="float32")
    assert providers.support(SILU_MUL, other).provider == "kernel", "another op was not tried yet"


def test_a_wrong_spec_is_a_programmers_error() -> None:
    with pytest.raises(AssertionError, match="linear"):
        table(provider("torch")).bind(LINEAR, NORM)

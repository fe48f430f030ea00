from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isoinfer.backends.evidence import Claim, Evidence
from isoinfer.backends.interface import Support
from isoinfer.backends.ops import RMS_NORM, SILU_MUL, ActivationSpec, NormSpec
from isoinfer.engine.explain import BindRecorder

NORM = NormSpec(hidden_size=8, eps=1e-5, dtype="float32")
WIDE = NormSpec(hidden_size=16, eps=1e-5, dtype="float32")
GATE = ActivationSpec(intermediate_size=8, dtype="float32")


def backend() -> Any:
    """One that has a kernel for norms and composes everything else."""

    def support(op: Any, static: Any) -> Support:
        if op is RMS_NORM:
            return Support(status="supported", provider="kernel")
        return Support(status="supported", provider="composed", reason="kernel: too new")

    refusal = Support(status="unsupported", provider="old", reason="too slow")
    return SimpleNamespace(
        name="toy",
        bind=lambda op, static: (op.name, static),
        support=support,
        supports=lambda op, static: [support(op, static), refusal],
    )


def test_bind_hands_out_the_backend_s_own_function_and_counts() -> None:
    recorder = BindRecorder(backend())
    assert recorder.bind(RMS_NORM, NORM) == ("rms_norm", NORM)
    for op, static in ((SILU_MUL, GATE), (RMS_NORM, WIDE), (RMS_NORM, NORM)):
        recorder.bind(op, static)
    rows = recorder.explain()
    assert [(row["op"], row["count"], row["provider"]) for row in rows] == [
        ("rms_norm", 2, "kernel"),
        ("silu_mul", 1, "composed"),
        ("rms_norm", 1, "kernel"),
    ]
    assert rows[0]["static"] == {"hidden_size": 8, "eps": 1e-5, "dtype": "float32"}
    assert rows[0]["others"] == [{"provider": "old", "status": "unsupported", "reason": "too slow"}]


def test_what_is_known_of_a_provider_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Claim(word="compiled", by="a gate", served=(("rms_norm", "kernel"),))
    monkeypatch.setattr("isoinfer.engine.explain.evidence_of", lambda name: Evidence(claims=(claim,)))
    recorder = BindRecorder(backend())
    recorder.bind(RMS_NORM, NORM)
    recorder.bind(SILU_MUL, GATE)
    assert [row["evidence"] for row in recorder.explain()] == [["compiled"], []]


def test_fallbacks_are_named_once_with_their_reason() -> None:
    recorder = BindRecorder(backend())
    recorder.bind(RMS_NORM, NORM)
    assert recorder.fallbacks() == []
    recorder.bind(SILU_MUL, GATE)
    recorder.bind(SILU_MUL, ActivationSpec(intermediate_size=16, dtype="float32"))
    assert recorder.fallbacks() == ["fallback: silu_mul is composed (kernel: too new)"]

"""Our calls of the fused operators against the ops' own cases: the operators enforce their constraints."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from isoinfer.backends.ascend.npu_ops import refuse_rope
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.ops import ALL_OPS, RopeSpec
from isoinfer.conformance.emulated import emulated_ascend
from isoinfer.conformance.op_cases import run_op_cases

SERVED = (
    "rms_norm",
    "add_rms_norm",
    "silu_mul",
    "swiglu_clipped",
    "rope",
    "kv_write",
    "rope_kv_write",
    "paged_attention",
    "moe_route",
    "moe_experts",
)


@pytest.mark.parametrize("chip", ["910B", "950"])
def test_every_case_passes(chip: str) -> None:
    emulated = emulated_ascend(chip, BackendConfig())
    dtypes = (torch.float32, torch.bfloat16)
    results = run_op_cases(emulated.backend, [ALL_OPS[name] for name in SERVED], dtypes)
    assert not Counter(f"{r.id} by {r.provider}: {r.reason}" for r in results if r.status != "passed")
    assert len(emulated.npu.calls) == 11, sorted(emulated.npu.calls)


def test_rope_refusals() -> None:
    spec = RopeSpec(head_dim=1024, rotary_dim=896, interleaved=False, dtype="float32")
    assert "fewer than 896" in refuse_rope(spec)

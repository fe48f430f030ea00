"""What is asked of the fused attention operator, and what is not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from isoinfer.backends.ascend.attention import BAND, CAUSAL, causal_mask, make_fused, refuse_fused
from isoinfer.backends.ascend.plan import AscendAttentionPlan
from isoinfer.backends.ops import AttentionSpec, CanonicalKV

SPEC = AttentionSpec(
    num_heads=8,
    num_kv_heads=2,
    head_dim=128,
    scale=0.1,
    block_size=128,
    window=None,
    softcap=None,
    has_sinks=False,
    dtype="bfloat16",
)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"has_sinks": True}, ""),
        ({"window": 100}, ""),
        ({"dtype": "float32"}, "takes float16 or bfloat16"),
        ({"softcap": 30.0}, "no softcap"),
        ({"head_dim": 256}, "not 256"),
        ({"num_heads": 130}, "64 query heads"),
        ({"block_size": 64}, "not 64"),
        ({"num_heads": 512, "num_kv_heads": 512}, "at most 65535"),
        ({"has_sinks": True, "dtype": "float16"}, "sinks in bfloat16"),
        ({"has_sinks": True, "head_dim": 192}, "up to 128"),
    ],
    ids=str,
)
def test_refusals_name_the_constraint(change: dict[str, Any], reason: str) -> None:
    refusal = refuse_fused(replace(SPEC, **change))
    assert (refusal == "") if reason == "" else (reason in refusal)


def calls(spec: AttentionSpec, queries: list[int], *, one_phase: bool) -> list[dict[str, Any]]:
    """The keyword arguments of the calls for such rows, each with a KV length of 50."""
    seen: list[dict[str, Any]] = []

    def operator(query: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
        seen.append({**kwargs, "tokens": query.shape[0]})
        return query, None

    npu = SimpleNamespace(npu_fused_infer_attention_score_v2=operator)
    run = make_fused(spec, npu, lambda: causal_mask(torch.device("cpu")), one_phase)
    ends = torch.tensor(queries).cumsum(0)
    plan = AscendAttentionPlan(
        q_end_R=tuple(ends.tolist()),
        q_len_host_R=tuple(queries),
        kv_len_host_R=(50,) * len(queries),
        q_start_R=ends - torch.tensor(queries),
        q_len_R=torch.tensor(queries),
        kv_len_R=torch.full((len(queries),), 50),
        table_RB=torch.zeros(len(queries), 1, dtype=torch.int32),
    )
    q_TND = torch.randn(sum(queries), spec.num_heads, spec.head_dim)
    out_TND = torch.zeros_like(q_TND)
    kv = CanonicalKV(*(torch.zeros(2, 128, spec.num_kv_heads, spec.head_dim) for _ in "kv"))
    run(q_TND, kv, plan, None, out_TND)
    assert torch.equal(out_TND, q_TND)
    return seen


def test_a_window_of_w_sees_w_keys() -> None:
    """Key j is seen from i - pre_tokens on, so pre_tokens is one less than the window."""
    (call,) = calls(replace(SPEC, window=100), [1, 1], one_phase=False)
    assert (call["sparse_mode"], call["pre_tokens"], call["next_tokens"]) == (BAND, 99, 0)


def test_causal_calls_give_the_scale_and_leave_the_limits_alone() -> None:
    (call,) = calls(SPEC, [1, 7, 1], one_phase=False)
    assert (call["sparse_mode"], call["softmax_scale"], "pre_tokens" in call) == (CAUSAL, 0.1, False)
    assert (call["actual_seq_qlen"], call["actual_seq_kvlen"]) == ([1, 8, 9], [50, 50, 50])


def test_phases_are_separate_calls_where_they_must_be() -> None:
    seen = calls(SPEC, [1, 1, 4, 3, 1], one_phase=True)
    assert [call["actual_seq_qlen"] for call in seen] == [[1, 2], [4, 7], [1]]
    assert [call["block_table"].shape[0] for call in seen] == [2, 2, 1]

"""Each constraint of the emulated operators: a good call passes, and each violation of one raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from isoinfer.backends.ascend.attention import causal_mask
from isoinfer.backends.ascend.soc import SOCS
from isoinfer.conformance.npu_emulation import EmulatedNpu, operators
from isoinfer.conformance.npu_emulation_rules import ConstraintError

HALF = torch.bfloat16
N, K, D = 4, 2, 64
Arguments = dict[str, Any]


def norm() -> Arguments:
    return {"input": torch.ones(3, 8), "gamma": torch.ones(8)}


def add_norm() -> Arguments:
    return {"x1": torch.ones(3, 8), "x2": torch.ones(3, 8), "gamma": torch.ones(8)}


def swiglu() -> Arguments:
    return {"input": torch.ones(3, 8)}


def clipped() -> Arguments:
    return {"x": torch.ones(3, 8), "interleaved": False}


def rotary() -> Arguments:
    return {"input": torch.ones(1, 5, 2, 8), "r1": torch.ones(1, 5, 1, 8), "r2": torch.ones(1, 5, 1, 8)}


def scatter() -> Arguments:
    cache = {name: torch.zeros(3, 128, K, D) for name in ("key_cache", "value_cache")}
    new = {name: torch.ones(2, K, D) for name in ("key", "value")}
    return {**new, **cache, "slot_mapping": torch.tensor([7, 300], dtype=torch.int32), "cache_mode": "Norm"}


def attention() -> Arguments:
    return {
        "query": torch.ones(5, N, D, dtype=HALF),
        "key": torch.ones(3, 128, K * D, dtype=HALF),
        "value": torch.ones(3, 128, K * D, dtype=HALF),
        "atten_mask": causal_mask(torch.device("cpu")),
        "actual_seq_qlen": [2, 5],
        "actual_seq_kvlen": [100, 200],
        "block_table": torch.tensor([[1, 0], [2, 1]], dtype=torch.int32),
        "num_query_heads": N,
        "num_key_value_heads": K,
        "softmax_scale": 0.125,
        "input_layout": "TND",
        "sparse_mode": 3,
        "block_size": 128,
    }


def gating() -> Arguments:
    return {"x": torch.arange(16.0).view(2, 8), "k": 2}


def routing() -> Arguments:
    return {
        "x": torch.ones(2, 4),
        "expert_idx": torch.tensor([[1, 0], [3, 1]], dtype=torch.int32),
        "active_num": 4,
        "expert_num": 4,
        "expert_tokens_num_type": 1,
        "expert_tokens_num_flag": True,
        "active_expert_range": [0, 4],
    }


def grouped() -> Arguments:
    return {
        "x": [torch.ones(4, 8, dtype=HALF)],
        "weight": [torch.ones(2, 6, 8, dtype=HALF).transpose(1, 2)],
        "group_list": torch.tensor([1, 3]),
        "group_list_type": 1,
        "group_type": 0,
        "split_item": 2,
    }


def unpermute() -> Arguments:
    return {
        "permuted_tokens": torch.ones(4, 8, dtype=HALF),
        "sorted_indices": torch.tensor([0, 2, 1, 3], dtype=torch.int32),
        "probs": torch.ones(2, 2, dtype=HALF),
    }


GOOD: dict[str, Callable[[], Arguments]] = {
    "npu_rms_norm": norm,
    "npu_add_rms_norm": add_norm,
    "npu_swiglu": swiglu,
    "npu_clipped_swiglu": clipped,
    "npu_rotary_mul": rotary,
    "npu_scatter_pa_kv_cache": scatter,
    "npu_fused_infer_attention_score_v2": attention,
    "npu_moe_gating_top_k": gating,
    "npu_moe_init_routing_v2": routing,
    "npu_grouped_matmul": grouped,
    "npu_moe_token_unpermute": unpermute,
}


def strided(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Not contiguous: every second row."""
    return torch.ones(2 * shape[0], *shape[1:], dtype=dtype)[::2]


FIA = "npu_fused_infer_attention_score_v2"
SCATTER = "npu_scatter_pa_kv_cache"
GROUPED = "npu_grouped_matmul"
ROUTING = "npu_moe_init_routing_v2"
BAD: list[tuple[str, Arguments, str]] = [
    ("npu_rms_norm", {"input": strided(3, 8)}, "must be contiguous"),
    ("npu_rms_norm", {"gamma": torch.ones(8, dtype=HALF)}, "must have one dtype"),
    ("npu_rms_norm", {"gamma": torch.ones(4)}, "length of a row"),
    ("npu_rms_norm", {"input": torch.ones(3, 8).double()}, "must be one of"),
    ("npu_add_rms_norm", {"x2": torch.ones(1, 8)}, "must have one shape"),
    ("npu_add_rms_norm", {"x2": strided(3, 8)}, "must be contiguous"),
    ("npu_swiglu", {"input": torch.ones(3, 7)}, "must be even"),
    ("npu_swiglu", {"dim": 0}, "only the last dim"),
    ("npu_clipped_swiglu", {"x": strided(3, 8)}, "must be contiguous"),
    ("npu_clipped_swiglu", {"bias": 0.0}, "only bias 1"),
    ("npu_rotary_mul", {"r1": torch.ones(1, 5, 1, 8, dtype=HALF)}, "must have one dtype"),
    ("npu_rotary_mul", {"r1": torch.ones(5, 8)}, "four dims"),
    ("npu_rotary_mul", {"r1": torch.ones(1, 4, 1, 8)}, "must be \\[1, S, 1, D\\]"),
    ("npu_rotary_mul", {"rotary_mode": "quarter"}, "half or interleave"),
    ("npu_rotary_mul", {"input": torch.ones(1, 5, 1000, 8)}, "under 1000"),
    ("npu_rotary_mul", {n: torch.ones(1, 5, 1, 896) for n in ("input", "r1", "r2")}, "under 896"),
    (SCATTER, {"cache_mode": "PA_NZ"}, "default is PA_NZ"),
    (SCATTER, {"slot_mapping": torch.tensor([7, -1], dtype=torch.int32)}, "in range"),
    (SCATTER, {"slot_mapping": torch.tensor([7, 384], dtype=torch.int32)}, "in range"),
    (SCATTER, {"slot_mapping": torch.tensor([7, 7], dtype=torch.int32)}, "distinct"),
    (SCATTER, {"slot_mapping": torch.tensor([7], dtype=torch.int32)}, "one slot a token"),
    (SCATTER, {"slot_mapping": torch.tensor([7.0, 8.0])}, "must be one of"),
    (SCATTER, {"key": strided(2, K, D)}, "must be contiguous"),
    (SCATTER, {"key": torch.ones(2, K, D, dtype=HALF)}, "must have one dtype"),
    (FIA, {"softmax_scale": None}, "default is 1.0"),
    (FIA, {"input_layout": "BSH"}, "only the TND layout"),
    (FIA, {"query": torch.ones(5, N, D)}, "must be one of"),
    (FIA, {"key": torch.ones(3, 128, K * D, dtype=torch.float16)}, "must have one dtype"),
    (FIA, {"query": strided(5, N, D, dtype=HALF)}, "must be contiguous"),
    (FIA, {"num_query_heads": 1}, "its default is 1"),
    (FIA, {"num_key_value_heads": 0}, "must be given"),
    (FIA, {"num_key_value_heads": 3}, "at most 64 to a KV head"),
    (FIA, {"query": torch.ones(5, 65 * K, D, dtype=HALF), "num_query_heads": 65 * K}, "at most 64 to a KV head"),
    (FIA, {"query": torch.ones(5, N, 80, dtype=HALF)}, "head dims 64, 128 and 192"),
    (FIA, {"learnable_sink": torch.ones(N)}, "must be bfloat16"),
    (FIA, {"learnable_sink": torch.ones(2, dtype=HALF)}, "must be \\[N\\]"),
    (FIA, {"query": torch.ones(5, N, 192, dtype=HALF), "learnable_sink": torch.ones(N, dtype=HALF)}, "up to 128"),
    (FIA, {"sparse_mode": 0}, "sparse_mode 3"),
    (FIA, {"atten_mask": None}, "need a mask"),
    (FIA, {"atten_mask": torch.ones(5, 5, dtype=torch.int8)}, "2048 x 2048"),
    (FIA, {"atten_mask": torch.ones(2048, 2048, dtype=torch.int8).tril(-1)}, "upper triangular"),
    (FIA, {"atten_mask": torch.ones(2048, 2048)}, "must be one of"),
    (FIA, {"pre_tokens": 5}, "ignores pre_tokens"),
    (FIA, {"sparse_mode": 4}, "needs both limits"),
    (FIA, {"sparse_mode": 4, "pre_tokens": 5}, "needs both limits"),
    (FIA, {"block_size": 0}, "multiple of 128"),
    (FIA, {"block_size": 64}, "multiple of 128"),
    (FIA, {"block_size": 640}, "up to 512"),
    (FIA, {"key": torch.ones(3, 128, K, D, dtype=HALF)}, "must be \\[B, S, K \\* D\\]"),
    (FIA, {"value": torch.ones(2, 128, K * D, dtype=HALF)}, "must have one shape"),
    (FIA, {"num_key_value_heads": 4}, "K \\* D must be that of the cache"),
    (FIA, {"block_table": None}, "must be given"),
    (FIA, {"block_table": torch.tensor([[1, 0], [2, 1]])}, "must be one of"),
    (FIA, {"block_table": torch.tensor([[1, 0], [2, 3]], dtype=torch.int32)}, "in the cache"),
    (FIA, {"block_table": torch.tensor([[1, 2], [0, 1]], dtype=torch.int32).T}, "must be contiguous"),
    (FIA, {"actual_seq_qlen": torch.tensor([2, 5])}, "must be a host list"),
    (FIA, {"actual_seq_kvlen": torch.tensor([100, 200])}, "must be a host list"),
    (FIA, {"actual_seq_qlen": [2]}, "one length a row"),
    (FIA, {"actual_seq_qlen": [2, 3]}, "must be cumulative"),
    (FIA, {"actual_seq_qlen": [0, 5]}, "must be cumulative"),
    (FIA, {"actual_seq_kvlen": [100, 300]}, "per row, not cumulative"),
    (FIA, {"actual_seq_kvlen": [1, 200]}, "per row, not cumulative"),
    ("npu_moe_gating_top_k", {"x": strided(2, 8)}, "must be contiguous"),
    ("npu_moe_gating_top_k", {"renorm": 1}, "supports only 0"),
    ("npu_moe_gating_top_k", {"norm_type": 1}, "only softmax"),
    ("npu_moe_gating_top_k", {"x": torch.ones(2, 2)}, "more than 2 experts"),
    ("npu_moe_gating_top_k", {"x": torch.ones(1, 2049)}, "in all 2048"),
    ("npu_moe_gating_top_k", {"k": 9}, "1 to the number of experts"),
    ("npu_moe_gating_top_k", {"group_count": 2}, "only one group"),
    (ROUTING, {"expert_idx": torch.tensor([[1, 0], [3, 1]])}, "must be one of"),
    (ROUTING, {"expert_idx": torch.tensor([[1, 0], [4, 1]], dtype=torch.int32)}, "in range"),
    (ROUTING, {"active_num": -1}, "active_num"),
    (ROUTING, {"active_expert_range": None}, "active_expert_range"),
    (ROUTING, {"quant_mode": 1}, "unquantised"),
    (ROUTING, {"expert_tokens_num_type": 0}, "only counts"),
    (GROUPED, {"x": [torch.ones(4, 8)]}, "must be one of"),
    (GROUPED, {"x": [torch.ones(4, 8, dtype=torch.float16)]}, "must have one dtype"),
    (GROUPED, {"x": []}, "one x and one weight"),
    (GROUPED, {"x": [strided(4, 8, dtype=HALF)]}, "must be contiguous"),
    (GROUPED, {"weight": [torch.ones(2, 6, 8, dtype=HALF)]}, "must be \\[E, K, N\\]"),
    (GROUPED, {"weight": [torch.ones(2, 8, 12, dtype=HALF)[..., ::2]]}, "contiguous, or its transpose"),
    (GROUPED, {"group_list": torch.tensor([1, 2])}, "add up to the rows"),
    (GROUPED, {"group_list": torch.tensor([1, 3], dtype=torch.int32)}, "int64 tensor"),
    (GROUPED, {"group_list": [1, 3]}, "int64 tensor"),
    (GROUPED, {"group_list": torch.tensor([4])}, "one group an expert"),
    (GROUPED, {"weight": [torch.ones(1, 8, 6, dtype=HALF)], "group_list": torch.tensor([4])}, "single group"),
    (GROUPED, {"split_item": 0}, "split_item 2 or 3"),
    (GROUPED, {"bias": [torch.ones(2, 6)]}, "biases"),
    ("npu_moe_token_unpermute", {"sorted_indices": torch.tensor([0, -2, 1, 3], dtype=torch.int32)}, "not be negative"),
    ("npu_moe_token_unpermute", {"sorted_indices": torch.tensor([0, 2, 1, 3])}, "must be one of"),
    ("npu_moe_token_unpermute", {"probs": None}, "one weight a sorted row"),
]


@pytest.mark.parametrize("name", GOOD)
def test_a_good_call_passes(name: str) -> None:
    npu = EmulatedNpu(SOCS["910B"])
    getattr(npu, name)(**GOOD[name]())
    assert npu.calls == {name: 1}


@pytest.mark.parametrize(("name", "change", "rule"), BAD, ids=[f"{i}-{name}" for i, (name, *_) in enumerate(BAD)])
def test_each_violation_raises(name: str, change: Arguments, rule: str) -> None:
    with pytest.raises(ConstraintError, match=rule):
        getattr(EmulatedNpu(SOCS["910B"]), name)(**{**GOOD[name](), **change})


def test_every_operator_is_tried() -> None:
    assert set(operators()) == set(GOOD)


def test_the_950_takes_no_rows_of_both_phases() -> None:
    arguments = {**attention(), "actual_seq_qlen": [1, 5]}
    EmulatedNpu(SOCS["910B"]).npu_fused_infer_attention_score_v2(**arguments)
    with pytest.raises(ConstraintError, match="separate calls"):
        EmulatedNpu(SOCS["950"]).npu_fused_infer_attention_score_v2(**arguments)

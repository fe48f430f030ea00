"""The judge passes the plain reference and fails each kind of mutant. What it accepts is as tested as what not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from isoinfer.backends.interface import AttentionBatch
from isoinfer.backends.ops import ALL_OPS, OpSpec, Sample
from isoinfer.backends.ops.philox import gumbel
from isoinfer.conformance.arguments import copies, outcome, truth
from isoinfer.conformance.error_model import Verdict, check, ulp

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
HALVES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def _judge(op: OpSpec, sample: Sample, run: Callable[..., Any] | None = None) -> Verdict:
    """Judge `run(static, *args)` in place of the reference."""
    candidate = op if run is None else replace(op, reference=run)
    actual = outcome(candidate, sample.static, copies(sample.args))
    return check(op, sample.static, sample.args, actual, truth(op, sample.static, sample.args))


def _labels_that_fail(name: str, run: Callable[..., Any], dtype: torch.dtype) -> set[str]:
    op = ALL_OPS[name]
    return {sample.label for sample in op.samples(dtype, 0) if not _judge(op, sample, run).passed}


def _labels(name: str) -> set[str]:
    return {sample.label for sample in ALL_OPS[name].samples(torch.float32, 0)}


@DTYPES
@pytest.mark.parametrize("op", ALL_OPS.values(), ids=lambda op: op.name)
def test_the_reference_passes(op: OpSpec, dtype: torch.dtype) -> None:
    for seed in range(3):
        for sample in op.samples(dtype, seed):
            verdict = _judge(op, sample)
            assert verdict.passed, (sample.label, verdict)


# mutants


def _static_mutant(name: str, **changes: Any) -> Callable[..., Any]:
    def run(static: Any, *args: Any) -> Any:
        return ALL_OPS[name].reference(replace(static, **changes), *args)

    return run


@HALVES
def test_wrong_rope_pairing_fails(dtype: torch.dtype) -> None:
    def run(static: Any, *args: Any) -> None:
        ALL_OPS["rope"].reference(replace(static, interleaved=not static.interleaved), *args)

    assert _labels_that_fail("rope", run, dtype) == _labels("rope")


@HALVES
def test_rope_of_the_neighbouring_position_fails(dtype: torch.dtype) -> None:
    def run(static: Any, q: Any, k: Any, positions: Any, table: Any) -> None:
        ALL_OPS["rope"].reference(static, q, k, (positions - 1).clamp(min=0), table)

    assert _labels_that_fail("rope", run, dtype) == _labels("rope")


@HALVES
@pytest.mark.parametrize("shift", [-1, 1])
def test_window_off_by_one_fails(dtype: torch.dtype, shift: int) -> None:
    def run(static: Any, q: Any, kv: Any, *args: Any) -> None:
        clean = type(kv)(kv.k_BSKD.nan_to_num(nan=0.5), kv.v_BSKD.nan_to_num(nan=0.5))  # the poison must not help
        window = None if static.window is None else max(1, static.window + shift)
        ALL_OPS["paged_attention"].reference(replace(static, window=window), q, clean, *args)

    windows = {"window", "window-one", "sinks-window"} if shift > 0 else {"window", "sinks-window"}
    assert _labels_that_fail("paged_attention", run, dtype) == windows


def _with_lengths(change: Callable[[torch.Tensor, AttentionBatch], torch.Tensor]) -> Callable[..., Any]:
    def run(static: Any, q: Any, kv: Any, plan: AttentionBatch, *args: Any) -> None:
        length = change(plan.kv_len_device_R, plan)
        ALL_OPS["paged_attention"].reference(static, q, kv, replace(plan, kv_len_device_R=length), *args)

    return run


@HALVES
def test_dropped_last_block_fails(dtype: torch.dtype) -> None:
    def drop(length: torch.Tensor, plan: AttentionBatch) -> torch.Tensor:
        whole = (length - 1) // plan.block_size * plan.block_size
        return torch.where(torch.from_numpy(plan.query_len_R) <= whole, whole, length)

    failed = _labels_that_fail("paged_attention", _with_lengths(drop), dtype)
    assert failed >= {"decode-gqa", "mixed", "window", "softcap", "sinks-window"}


@HALVES
def test_swapped_block_table_rows_fail(dtype: torch.dtype) -> None:
    def run(static: Any, q: Any, kv: Any, plan: AttentionBatch, *args: Any) -> None:
        clean = type(kv)(kv.k_BSKD.nan_to_num(), kv.v_BSKD.nan_to_num())
        swapped = replace(plan, block_table_RB=plan.block_table_RB.flip(0))
        ALL_OPS["paged_attention"].reference(static, q, clean, swapped, *args)

    failed = _labels_that_fail("paged_attention", run, dtype)
    assert failed == _labels("paged_attention") - {"first-token", "prefill-odd"}  # one row: nothing to swap


@HALVES
def test_forgotten_sinks_and_softcap_fail(dtype: torch.dtype) -> None:
    def run(static: Any, q: Any, kv: Any, plan: Any, sinks: Any, out: Any) -> None:
        ALL_OPS["paged_attention"].reference(replace(static, softcap=None), q, kv, plan, None, out)

    assert _labels_that_fail("paged_attention", run, dtype) == {"softcap", "sinks-window"}


@HALVES
def test_wrong_kv_head_of_a_group_fails(dtype: torch.dtype) -> None:
    def run(static: Any, q: Any, kv: Any, plan: Any, sinks: Any, out: Any) -> None:
        group = static.num_heads // static.num_kv_heads
        order = torch.arange(static.num_heads).view(group, -1).T.flatten()  # heads striped over KV heads
        mixed = torch.empty_like(out)
        ALL_OPS["paged_attention"].reference(static, q[:, order], kv, plan, sinks, mixed)
        out[:, order] = mixed

    assert _labels_that_fail("paged_attention", run, dtype) >= {"decode-gqa", "mixed", "window", "softcap"}


def _sum_in_bfloat16(products: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(products.shape[:-1], dtype=torch.bfloat16)
    for k in range(products.shape[-1]):
        total = total + products[..., k].bfloat16()
    return total


@HALVES
def test_linear_with_a_bfloat16_accumulator_fails(dtype: torch.dtype) -> None:
    def run(static: Any, x: Any, weight: Any, bias: Any) -> torch.Tensor:
        w = weight.dense(torch.float32)
        y = _sum_in_bfloat16(x.float()[:, None, :] * w[None]).float() + (bias.float() if bias is not None else 0)
        return y.to(dtype if static.out_dtype != "float32" else torch.float32)

    assert _labels_that_fail("linear", run, dtype) == _labels("linear")


@HALVES
def test_norm_with_a_bfloat16_accumulator_fails(dtype: torch.dtype) -> None:
    def run(static: Any, x: Any, weight: Any) -> torch.Tensor:
        mean = _sum_in_bfloat16(x.float().square()).float() / static.hidden_size
        return (x.float() * torch.rsqrt(mean + static.eps)[:, None] * weight.float()).to(x.dtype)

    assert _labels_that_fail("rms_norm", run, dtype) >= {"odd", "large-values"}


@HALVES
def test_attention_with_a_bfloat16_accumulator_fails(dtype: torch.dtype) -> None:
    def run(static: Any, q: Any, kv: Any, plan: Any, sinks: Any, out: Any) -> None:
        """Output accumulated key by key in bfloat16, probabilities exact."""
        start = 0
        for r, (count, length) in enumerate(zip(plan.query_len_R.tolist(), plan.kv_len_device_R.tolist(), strict=True)):
            total = torch.zeros(count, *out.shape[1:], dtype=torch.bfloat16)
            for j in range(length):
                block = int(plan.block_table_RB[r, j // plan.block_size])
                only = type(kv)(kv.k_BSKD, torch.zeros_like(kv.v_BSKD))
                only.v_BSKD[block, j % plan.block_size] = kv.v_BSKD[block, j % plan.block_size].nan_to_num()
                part = torch.empty(count, *out.shape[1:])
                row = replace(
                    plan,
                    query_len_R=plan.query_len_R[r : r + 1],
                    kv_len_device_R=plan.kv_len_device_R[r : r + 1],
                    block_table_RB=plan.block_table_RB[r : r + 1],
                )
                ALL_OPS["paged_attention"].reference(static, q[start : start + count], only, row, sinks, part)
                total = total + part.bfloat16()
            out[start : start + count] = total.to(out.dtype)
            start += count

    op = ALL_OPS["paged_attention"]
    sample = next(sample for sample in op.samples(dtype, 0) if sample.label == "prefill-odd")
    assert not _judge(op, sample, run).passed


@HALVES
def test_activation_with_halves_swapped_fails(dtype: torch.dtype) -> None:
    def run(static: Any, x: torch.Tensor) -> Any:
        return ALL_OPS["silu_mul"].reference(static, torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1))

    assert _labels_that_fail("silu_mul", run, dtype) == _labels("silu_mul")


def test_unclipped_swiglu_fails() -> None:
    assert "wide-range" in _labels_that_fail(
        "swiglu_clipped", _static_mutant("swiglu_clipped", limit=1e9), torch.float32
    )


def test_experts_without_their_routing_weight_fail() -> None:
    def run(static: Any, x: Any, weights: torch.Tensor, *rest: Any) -> Any:
        return ALL_OPS["moe_experts"].reference(static, x, torch.full_like(weights, 1 / static.top_k), *rest)

    assert _labels_that_fail("moe_experts", run, torch.bfloat16) == _labels("moe_experts")


def test_routing_ties_to_the_higher_index_fail() -> None:
    def run(static: Any, logits: torch.Tensor) -> Any:
        weights, ids = ALL_OPS["moe_route"].reference(static, logits.flip(-1))
        return weights, static.num_experts - 1 - ids

    assert _labels_that_fail("moe_route", run, torch.float32) == {"ties"}


def test_one_wrong_bit_of_an_exact_op_fails_and_is_located() -> None:
    op = ALL_OPS["gather_rows"]
    sample = next(s for s in op.samples(torch.bfloat16, 0) if s.label == "repeats-unordered")

    def run(static: Any, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        y = op.reference(static, x, rows)
        y.view(torch.int16)[2, 34] ^= 1
        return y

    verdict = _judge(op, sample, run)
    assert not verdict.passed
    assert verdict.index == (2, 34)


def test_a_write_to_a_foreign_slot_fails() -> None:
    def run(static: Any, k: Any, v: Any, kv: Any, slots: Any) -> None:
        ALL_OPS["kv_write"].reference(static, k, v, kv, slots)
        kv.v_BSKD[int(slots[0]) // static.block_size - 1, 0, 0, 0] += 1

    assert _labels_that_fail("kv_write", run, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32], ids=str)
def test_sampling_with_other_noise_fails(dtype: torch.dtype) -> None:
    def run(static: Any, *args: Any) -> Any:
        return ALL_OPS["sample"].reference(static, *args[:-1], args[-1] + 1)

    assert _labels_that_fail("sample", run, dtype) >= {"odd", "words"}


def test_a_near_tie_of_scores_may_fall_either_way() -> None:
    op = ALL_OPS["sample"]
    sample = next(iter(op.samples(torch.float32, 0)))
    static = replace(sample.static, vocab_size=2)
    seed, position = torch.tensor([5]), torch.tensor([1], dtype=torch.int32)
    noise = gumbel(seed, position, 0, 2)
    rest = (torch.ones(1), torch.zeros(1, dtype=torch.int32), torch.ones(1), torch.zeros(1), seed, position)

    def verdict(lead: float) -> Verdict:
        logits = (noise.flip(-1) - noise) / 2 + torch.tensor([[lead, 0.0]])
        args = (logits, *rest)
        return check(op, static, args, {"token_R": torch.tensor([1], dtype=torch.int32)}, {})

    assert verdict(1e-7).passed
    far = verdict(1e-3)
    assert not far.passed
    assert far.reason == "token 1 instead of 0"


def test_argmax_of_the_last_of_equals_fails() -> None:
    def run(static: Any, logits: torch.Tensor) -> torch.Tensor:
        return (static.vocab_size - 1 - logits.flip(-1).argmax(-1)).to(torch.int32)

    assert _labels_that_fail("argmax", run, torch.float32) == {"ties"}


def test_nan_missing_shape_and_dtype_fail_with_a_reason() -> None:
    op = ALL_OPS["rms_norm"]
    sample = next(iter(op.samples(torch.float32, 0)))
    good = outcome(op, sample.static, copies(sample.args))["out_TH"]
    poisoned = good.clone()
    poisoned[0, 3] = torch.nan
    cases = (
        ({"out_TH": poisoned}, "error above the bound"),
        ({}, "the output is missing"),
        ({"out_TH": good[:, :-1]}, "got float32[1, 63], expected float32[1, 64]"),
        ({"out_TH": good.double()}, "got float64[1, 64], expected float32[1, 64]"),
    )
    true = truth(op, sample.static, sample.args)
    for actual, reason in cases:
        verdict = check(op, sample.static, sample.args, actual, true)
        assert not verdict.passed
        assert verdict.reason == reason
        assert verdict.ratio == math.inf


def test_a_coarser_declared_accumulator_widens_the_bound() -> None:
    op = ALL_OPS["linear"]
    sample = next(s for s in op.samples(torch.float32, 0) if s.label == "rows-33")
    x, weight, _ = sample.args
    rough = {"out_TN": (x.bfloat16().float() @ weight.tensor_NK.bfloat16().float().T)}
    true = truth(op, sample.static, sample.args)
    assert not check(op, sample.static, sample.args, rough, true).passed
    assert check(op, sample.static, sample.args, rough, true, "bfloat16").passed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_ulp_is_the_distance_to_the_next_value(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, 1.5, 1.9921875, 2.0, 0.75, 3e-3, 1000.0, 0.0], dtype=dtype)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    following = (values.view(bits) + 1).view(dtype)
    assert torch.equal(ulp(values.double(), dtype), following.double() - values.double())

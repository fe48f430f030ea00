"""Attention over rings: equal to attention over all that the window shows, however the work is cut and rejected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.backends.ops import RING_WRITE, WINDOW_ATTENTION, CanonicalKV, RingWriteSpec, WindowAttentionSpec
from isoinfer.backends.ops.rings import make_ring_batch, ring_cases
from isoinfer.backends.ops.window_attention import QUERIES_AT_ONCE
from isoinfer.conformance.arguments import copies, outcome, truth
from isoinfer.conformance.error_model import check

N, K, D = 4, 2, 8
WINDOW, DRAFTS = 6, 3
SPEC = WindowAttentionSpec(
    num_heads=N, num_kv_heads=K, head_dim=D, scale=D**-0.5, window=WINDOW, has_sinks=False, dtype="float64"
)
RING_0 = torch.tensor([0], dtype=torch.int32)
WRITE = RingWriteSpec(num_kv_heads=K, head_dim=D, dtype="float64")


def plain(q_TND: torch.Tensor, k_TKD: torch.Tensor, v_TKD: torch.Tensor, floor: int = 0) -> torch.Tensor:
    """Attention of a whole sequence, by torch and a mask."""
    position = torch.arange(len(q_TND))
    ahead = position[:, None] - position[None, :]
    seen = (ahead >= 0) & (ahead < WINDOW) & (position[None, :] >= floor)
    out = torch.nn.functional.scaled_dot_product_attention(
        q_TND.transpose(0, 1), k_TKD.transpose(0, 1), v_TKD.transpose(0, 1), attn_mask=seen, enable_gqa=True
    )
    return out.transpose(0, 1)


class Ringed:
    """One sequence in one ring of `ring` positions, which begins as NaN. Nothing before `first` is visible."""

    def __init__(self, length: int, *, ring: int = WINDOW + DRAFTS + 1, first: int = 0) -> None:
        gen = torch.Generator().manual_seed(length)
        self.ring, self.first = ring, first
        self.q, self.k, self.v = (
            torch.randn(length, heads, D, generator=gen, dtype=torch.float64) for heads in (N, K, K)
        )
        self.kv = CanonicalKV(*torch.full((2, 2, ring, K, D), torch.nan, dtype=torch.float64))

    def step(self, start: int, count: int, wrong: int = 0, write_first: bool = False) -> torch.Tensor:
        """Compute tokens `start` to `start + count`, the last `wrong` of which are drafts that will be rejected."""
        plan = make_ring_batch([(start, count, self.first)], RING_0, ring=self.ring, scratch=1)
        q, k, v = (x[start : start + count].clone() for x in (self.q, self.k, self.v))
        if wrong:
            q[-wrong:], k[-wrong:], v[-wrong:] = 5, 6, 7
        out = torch.empty_like(q)
        if write_first:
            RING_WRITE.reference(WRITE, k, v, self.kv, plan)
        WINDOW_ATTENTION.reference(SPEC, q, k, v, self.kv, plan, None, out)
        if not write_first:
            RING_WRITE.reference(WRITE, k, v, self.kv, plan)
        return out[: count - wrong]


def in_chunks(sequence: Ringed, sizes: Sequence[int], **how: Any) -> torch.Tensor:
    starts = [sequence.first + sum(sizes[:i]) for i in range(len(sizes))]
    return torch.cat([sequence.step(start, size, **how) for start, size in zip(starts, sizes, strict=True)])


@pytest.mark.parametrize("size", [1, DRAFTS, DRAFTS + 1, DRAFTS + 2, WINDOW, WINDOW + DRAFTS + 1, 3 * WINDOW])
def test_chunks_of_any_length_see_their_whole_window(size: int) -> None:
    sequence = Ringed(3 * size + 5)
    out = in_chunks(sequence, (size, 1, size, 4, size))
    torch.testing.assert_close(out, plain(sequence.q, sequence.k, sequence.v))


def test_writing_before_attending_loses_what_the_first_queries_see() -> None:
    """A chunk no longer than the margin and one may be written first; any longer one may not."""
    margin = DRAFTS + 1
    for size, is_right in ((margin + 1, True), (margin + 2, False), (WINDOW, False), (3 * WINDOW, False)):
        sequence = Ringed(WINDOW + size)
        in_chunks(sequence, (WINDOW,))
        out = sequence.step(WINDOW, size, write_first=True)
        expected = plain(sequence.q, sequence.k, sequence.v)[WINDOW:]
        assert torch.allclose(out, expected) == is_right, size


@given(steps=st.lists(st.tuples(st.integers(0, DRAFTS), st.integers(0, DRAFTS)), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_rejected_drafts_leave_no_trace(steps: list[tuple[int, int]]) -> None:
    """Every pattern of drafts and rejections, without any copy back."""
    kept = [(drafts, min(wrong, drafts)) for drafts, wrong in steps]
    sequence = Ringed(9 + sum(1 + drafts for drafts, _ in kept) + DRAFTS)
    outs, start = [sequence.step(0, 9)], 9
    for drafts, wrong in kept:
        outs.append(sequence.step(start, 1 + drafts, wrong=wrong))
        start += 1 + drafts - wrong
    expected = plain(sequence.q, sequence.k, sequence.v)[:start]
    torch.testing.assert_close(torch.cat(outs), expected)


def test_a_ring_without_margin_loses_what_rejected_drafts_took() -> None:
    sequence = Ringed(40, ring=WINDOW + 1)
    sequence.step(0, 20)
    sequence.step(20, 1 + DRAFTS, wrong=DRAFTS)
    expected = plain(sequence.q, sequence.k, sequence.v)[21:22]
    assert not torch.allclose(sequence.step(21, 1), expected)


@pytest.mark.parametrize("sizes", [(40,), (1,) * 40, (3, 17, 20)])
def test_what_lies_before_the_floor_is_invisible_until_the_window_has_passed(sizes: tuple[int, ...]) -> None:
    sequence = Ringed(50, first=10)
    out = in_chunks(sequence, sizes)
    torch.testing.assert_close(out, plain(sequence.q, sequence.k, sequence.v, floor=10)[10:])
    torch.testing.assert_close(out[WINDOW - 1 :], plain(sequence.q, sequence.k, sequence.v)[10 + WINDOW - 1 :])


def test_only_what_still_matters_is_written() -> None:
    """Of a chunk longer than the ring the last tokens; of nobody else's ring, nor of scratch, anything."""
    ring = 5
    plan = make_ring_batch([(7, 12, 0), (3, 2, 0)], torch.tensor([1, 0]), ring=ring, scratch=2)
    k, v = torch.randn(2, 14, K, D, dtype=torch.float64)
    kv = CanonicalKV(*torch.zeros(2, 3, ring, K, D, dtype=torch.float64))
    RING_WRITE.reference(WRITE, k, v, kv, plan)
    long, short = plan.ring_R.tolist()
    for position in range(14, 19):
        assert torch.equal(kv.k_BSKD[long, position % ring], k[position - 7])
        assert torch.equal(kv.v_BSKD[long, position % ring], v[position - 7])
    assert torch.equal(kv.k_BSKD[short, [3, 4]], k[12:])
    assert not kv.k_BSKD[short, [0, 1, 2]].any()
    assert not kv.k_BSKD[2].any()


def _sample(label: str) -> Any:
    return next(one for one in WINDOW_ATTENTION.samples(torch.float32, 0) if one.label == label)


@pytest.mark.parametrize(
    ("label", "change"),
    [
        ("full", lambda plan: replace(plan, floor_R=plan.floor_R + plan.kv_len_R - torch.from_numpy(plan.query_len_R))),
        ("full", lambda plan: replace(plan, ring_R=plan.ring_R.flip(0))),
        ("filling-gqa", lambda plan: replace(plan, kv_len_R=plan.kv_len_R + 1)),
        ("floors", lambda plan: replace(plan, floor_R=plan.floor_R * 0 + 1)),
        ("floors", lambda plan: replace(plan, floor_R=plan.floor_R - 1)),
    ],
    ids=["floors-too-high", "rings-mixed-up", "length-off-by-one", "floors-ignored", "floors-too-low"],
)
def test_the_samples_tell_a_wrong_plan(label: str, change: Any) -> None:
    sample = _sample(label)
    wrong = list(copies(sample.args))
    wrong[4] = change(sample.args[4])
    actual = outcome(WINDOW_ATTENTION, sample.static, tuple(wrong))
    right = truth(WINDOW_ATTENTION, sample.static, sample.args)
    assert not check(WINDOW_ATTENTION, sample.static, sample.args, actual, right).passed


def test_samples_have_the_lengths_that_matter() -> None:
    cases = {case.label: case for case in ring_cases(QUERIES_AT_ONCE)}
    full = cases["full"]
    counts = [count for _, count, _ in full.rows]
    assert counts == [1, full.margin, full.margin + 1, full.margin + 2, full.window, 3 * full.window]
    assert all(start >= full.ring for start, _, _ in full.rows)
    assert any(start < full.window for start, _, _ in cases["filling-gqa"].rows)
    assert all(floor <= start for start, _, floor in cases["floors"].rows)
    assert max(count for _, count, _ in cases["long-chunk"].rows) > 2 * QUERIES_AT_ONCE

"""Sampling: the kept sets against explicit python, distributions by chi-square, dependence on nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from isoinfer.backends.ops import ARGMAX, SAMPLE, LogitsSpec, bind_reference
from isoinfer.backends.ops.sample import keep_min_p, keep_top_k, keep_top_p, sample_scores


def _draw(
    logits: torch.Tensor,
    count: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
) -> torch.Tensor:
    """`count` draws from one row of logits at positions 0, 1, 2, ..."""
    vocab = len(logits)
    return bind_reference(SAMPLE, LogitsSpec(vocab_size=vocab))(
        logits.repeat(count, 1),
        torch.full((count,), temperature),
        torch.full((count,), top_k, dtype=torch.int32),
        torch.full((count,), top_p),
        torch.full((count,), min_p),
        torch.full((count,), seed, dtype=torch.int64),
        torch.arange(count, dtype=torch.int32),
    )


Check = Callable[[torch.Tensor, torch.Tensor], None]

LOGITS = torch.tensor([1.0, 0.2, -0.5, 2.0, 0.0, -1.0, 1.5, 0.7, -0.2, 0.4])


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
def test_frequencies_are_the_softmax(temperature: float, assert_distribution: Check) -> None:
    tokens = _draw(LOGITS, 20_000, temperature=temperature, seed=11)
    assert_distribution(tokens, torch.softmax(LOGITS.double() / temperature, dim=-1))


def test_frequencies_over_seeds_at_one_position(assert_distribution: Check) -> None:
    count = 20_000
    rows = (LOGITS.repeat(count, 1), torch.ones(count), torch.zeros(count, dtype=torch.int32))
    rest = (torch.ones(count), torch.zeros(count), torch.arange(count), torch.full((count,), 9, dtype=torch.int32))
    tokens = bind_reference(SAMPLE, LogitsSpec(vocab_size=10))(*rows, *rest)
    assert_distribution(tokens, torch.softmax(LOGITS.double(), dim=-1))


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.25}, {"top_k": 6, "top_p": 0.8}])
def test_frequencies_of_truncated_sampling(options: dict[str, float], assert_distribution: Check) -> None:
    logits = LOGITS.double()
    kept = keep_top_k(logits[None], torch.tensor([int(options.get("top_k", 0))]))[0]
    kept &= keep_min_p(logits[None], torch.tensor([options.get("min_p", 0.0)]))[0]
    rest = logits.masked_fill(~kept, -torch.inf)
    kept &= keep_top_p(rest[None], torch.tensor([options.get("top_p", 1.0)]))[0]
    assert 1 < int(kept.sum()) < len(logits)
    p = torch.softmax(logits.masked_fill(~kept, -torch.inf), dim=-1)
    assert_distribution(_draw(LOGITS, 20_000, seed=5, **options), p)  # type: ignore[arg-type]


def test_neighbouring_positions_and_seeds_are_independent(assert_distribution: Check) -> None:
    p = torch.softmax(LOGITS.double(), dim=-1)
    joint = (p[:, None] * p[None, :]).flatten()
    tokens = _draw(LOGITS, 20_001, seed=3).long()
    assert_distribution(tokens[:-1:2] * 10 + tokens[1::2], joint)
    other = _draw(LOGITS, 20_001, seed=4).long()
    assert_distribution(tokens * 10 + other, joint)


def test_top_k_keeps_ties_with_the_last() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0, 2.0, 0.0]])
    for k, kept in ((1, [0]), (2, [0, 2, 3]), (3, [0, 2, 3]), (4, [0, 1, 2, 3]), (0, [*range(5)]), (9, [*range(5)])):
        assert keep_top_k(logits, torch.tensor([k]))[0].nonzero().flatten().tolist() == kept


def test_top_p_is_the_smallest_set_that_reaches_the_mass() -> None:
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]], dtype=torch.float64))
    cases = ((0.0, [1]), (0.39, [1]), (0.41, [1, 3]), (0.69, [1, 3]), (0.71, [1, 2, 3]), (0.95, [0, 1, 2, 3]))
    for p, kept in cases:
        assert keep_top_p(logits, torch.tensor([p]))[0].nonzero().flatten().tolist() == kept
    even = torch.zeros(1, 4)
    assert keep_top_p(even, torch.tensor([0.5]))[0].tolist() == [True, True, False, False]
    assert keep_top_p(even, torch.tensor([1.0])).all()


def test_min_p_compares_with_the_best() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64))
    for p, count in ((0.0, 4), (0.2, 3), (0.5, 2), (0.7, 1), (1.0, 1)):
        assert int(keep_min_p(logits, torch.tensor([p])).sum()) == count


def test_the_token_is_kept_by_every_filter() -> None:
    for sample in SAMPLE.samples(torch.float32, 0):
        tokens = bind_reference(SAMPLE, sample.static)(*sample.args).long()
        scores = sample_scores(sample.static, *sample.args)
        assert torch.isfinite(scores.gather(-1, tokens[:, None])).all()


def test_a_row_depends_only_on_its_own_logits_seed_and_position() -> None:
    sample = next(iter(SAMPLE.samples(torch.float32, 0)))
    op = bind_reference(SAMPLE, sample.static)
    tokens = op(*sample.args)
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(2))
    assert torch.equal(op(*(arg[order] for arg in sample.args)), tokens[order])
    for r in range(len(tokens)):
        assert torch.equal(op(*(arg[r : r + 1] for arg in sample.args)), tokens[r : r + 1])


def test_seed_and_position_both_matter() -> None:
    logits = torch.zeros(50)
    assert not torch.equal(_draw(logits, 40, seed=1), _draw(logits, 40, seed=1 + 2**32))
    assert not torch.equal(_draw(logits, 40, seed=1), _draw(logits, 40, seed=2))
    assert len(set(_draw(logits, 40, seed=1).tolist())) > 20


def test_temperature_zero_is_argmax_whatever_the_filters() -> None:
    assert _draw(LOGITS, 3, temperature=0.0, top_k=2, top_p=0.1, min_p=0.9).tolist() == [3, 3, 3]


def test_argmax_takes_the_lowest_of_equals() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [-torch.inf, -torch.inf, -torch.inf]])
    tokens = bind_reference(ARGMAX, LogitsSpec(vocab_size=3))(logits)
    assert tokens.tolist() == [1, 0]
    assert tokens.dtype == torch.int32

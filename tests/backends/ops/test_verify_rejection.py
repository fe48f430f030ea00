"""The classical rule: what it emits has the target's distribution, in the right numbers; greedy rows are `verify`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from isoinfer.backends.ops import SAMPLE, VERIFY, VERIFY_REJECTION, LogitsSpec, OpSpec, RejectionSpec, VerifySpec
from isoinfer.backends.ops.sample import filter_logits

Check = Callable[[torch.Tensor, torch.Tensor], None]
COUNT, VOCAB = 20_000, 5
LOGITS = torch.tensor([[1.0, 0.2, -0.5, 2.0, 0.0], [0.5, 1.5, 1.0, -1.0, 0.0], [0.0, -1.0, 1.0, 0.5, 0.3]])
OPTIONS = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7, "top_k": 3},
    {"top_p": 0.8},
    {"min_p": 0.3},
    {"temperature": 1.2, "top_k": 4, "top_p": 0.9, "min_p": 0.1},
]
DRAFTS = [(0, 1), (3, 2), (2, 3)]
"""Likely, the likeliest, and such that some options rule out."""


def _rows(
    drafts: tuple[int, ...], count: int, options: dict[str, float], *, over_seeds: bool
) -> tuple[torch.Tensor, ...]:
    """`count` rows with the same drafts and logits, told apart by seed or by position; token_P is not there yet."""
    J = len(drafts) + 1
    place_P = torch.arange(count * J, dtype=torch.int32)
    row_P = place_P // J
    seed_P = row_P.long() if over_seeds else torch.full_like(place_P, 7, dtype=torch.int64)
    position_P = place_P % J + 3 if over_seeds else place_P
    return (
        torch.tensor([4, *drafts], dtype=torch.int32).repeat(count),
        place_P,
        torch.arange(0, count * J + 1, J, dtype=torch.int32),
        LOGITS[:J].repeat(count, 1),
        torch.full((count * J,), options.get("temperature", 1.0)),
        torch.full((count * J,), int(options.get("top_k", 0)), dtype=torch.int32),
        torch.full((count * J,), options.get("top_p", 1.0)),
        torch.full((count * J,), options.get("min_p", 0.0)),
        seed_P,
        position_P,
    )


def _verify(args: tuple[torch.Tensor, ...], num_drafts: int) -> tuple[torch.Tensor, ...]:
    token_P = SAMPLE.reference(LogitsSpec(vocab_size=VOCAB), *args[3:])
    result: tuple[torch.Tensor, ...] = VERIFY_REJECTION.reference(
        RejectionSpec(num_drafts=num_drafts, vocab_size=VOCAB), token_P, *args
    )
    return result


def _target(options: dict[str, float]) -> torch.Tensor:
    """The distribution that `sample` draws from, at each place."""
    columns = [torch.full((len(LOGITS),), options.get(name, 0.0)) for name in ("top_k", "min_p")]
    temperature, top_p = (torch.full((len(LOGITS),), options.get(name, 1.0)) for name in ("temperature", "top_p"))
    return torch.softmax(filter_logits(LOGITS.double(), temperature, columns[0], top_p, columns[1]), dim=-1)


def _outcomes(p: torch.Tensor, drafts: tuple[int, ...]) -> torch.Tensor:
    """The probability of every (accepted, last token): drafts are taken as they are likely, tokens follow p."""
    outcome, reached = torch.zeros(len(drafts) + 1, VOCAB, dtype=torch.float64), 1.0
    for place, draft in enumerate(drafts):
        outcome[place] = reached * p[place]
        outcome[place, draft] = 0
        reached *= float(p[place, draft])
    outcome[len(drafts)] = reached * p[len(drafts)]
    return outcome.flatten()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("drafts", DRAFTS, ids=str)
@pytest.mark.parametrize("over_seeds", [True, False], ids=["seeds", "positions"])
def test_tokens_have_the_targets_distribution(
    options: dict[str, float], drafts: tuple[int, ...], over_seeds: bool, assert_distribution: Check
) -> None:
    """How many are accepted and what comes then, jointly; and each position given that the drafts before it were.

    36 cases of up to 4 tests at 3e-7: family-wise 4e-5.
    """
    args = _rows(drafts, COUNT, options, over_seeds=over_seeds)
    token_GJ, accepted_G, rejected_G, last_G = _verify(args, len(drafts))
    p = _target(options)
    assert_distribution(accepted_G * VOCAB + last_G, _outcomes(p, drafts))
    assert torch.equal(accepted_G + rejected_G, torch.full_like(accepted_G, len(drafts)))
    for place in range(len(drafts) + 1):
        here_G = accepted_G >= place
        if int(here_G.sum()) > 1000:
            assert_distribution(token_GJ[here_G, place], p[place])
        assert not token_GJ[~here_G, place].any()
        assert torch.equal(token_GJ[accepted_G == place, place], last_G[accepted_G == place])


def test_rows_may_have_fewer_drafts() -> None:
    """Rows of one place only sample; a row of one draft is like the first of two."""
    input_T, _, _, *per_place = _rows((3, 1), 300, {}, over_seeds=True)
    token_GJ, accepted_G, _, _ = _verify((input_T, *_rows((3, 1), 300, {}, over_seeds=True)[1:]), 2)
    first_P = torch.arange(0, 900, 3)
    lone = [column[first_P] for column in per_place]
    start_X = torch.arange(301, dtype=torch.int32)
    result = _verify((input_T, first_P.to(torch.int32), start_X, *lone), 2)
    assert torch.equal(result[0][:, 0], SAMPLE.reference(LogitsSpec(vocab_size=VOCAB), *lone))
    assert not result[1].any()
    assert not result[2].any()
    two_P = torch.arange(900)[torch.arange(900) % 3 < 2]
    pair = [column[two_P] for column in per_place]
    got, accepted, rejected, _ = _verify((input_T, two_P.to(torch.int32), start_X * 2, *pair), 2)
    assert torch.equal(accepted, accepted_G.clamp(max=1))
    assert torch.equal(accepted + rejected, torch.ones_like(accepted))
    assert torch.equal(got[accepted == 0], token_GJ[accepted_G == 0])


def test_temperature_zero_is_verify() -> None:
    for sample in VERIFY_REJECTION.samples(torch.float32, 4):
        _, *where, logits_PV, temperature_P, top_k, top_p, min_p, seed, position = sample.args
        zero_P = torch.zeros_like(temperature_P)
        token_P = SAMPLE.reference(
            LogitsSpec(vocab_size=sample.static.vocab_size), logits_PV, zero_P, top_k, top_p, min_p, seed, position
        )
        result = VERIFY_REJECTION.reference(
            sample.static, token_P, *where, logits_PV, zero_P, top_k, top_p, min_p, seed, position
        )
        expected = VERIFY.reference(VerifySpec(num_drafts=sample.static.num_drafts), token_P, *where)
        assert all(map(torch.equal, result, expected)), sample.label


def test_round_after_round_the_sequence_has_the_targets_distribution(assert_distribution: Check) -> None:
    """A Markov target whose first three tokens come out of rounds that start where the one before ended."""
    p = torch.softmax(LOGITS[[0, 1, 2, 0, 1]].double() + torch.eye(VOCAB).double(), dim=-1)
    logits_VV = torch.log(p).float()
    row_G = torch.arange(COUNT)
    text_GL = torch.zeros(COUNT, 9, dtype=torch.int32)
    length_G = torch.ones(COUNT, dtype=torch.int32)
    for _ in range(3):
        last_G = text_GL[row_G, length_G.long() - 1]
        input_GJ = torch.stack((last_G, (last_G + 3) % VOCAB, (last_G + 4) % VOCAB), 1)
        position_P = (length_G[:, None] + torch.arange(3)).flatten().to(torch.int32)
        result = _verify(
            (
                input_GJ.flatten(),
                torch.arange(3 * COUNT, dtype=torch.int32),
                3 * torch.arange(COUNT + 1, dtype=torch.int32),
                logits_VV[input_GJ.flatten().long()],
                torch.ones(3 * COUNT),
                torch.zeros(3 * COUNT, dtype=torch.int32),
                torch.ones(3 * COUNT),
                torch.zeros(3 * COUNT),
                row_G.repeat_interleave(3),
                position_P,
            ),
            2,
        )
        for place in range(3):
            at_G = (length_G.long() + place).clamp(max=8)
            writes_G = (result[1] >= place) & (length_G + place < 9)
            text_GL[row_G, at_G] = torch.where(writes_G, result[0][:, place], text_GL[row_G, at_G])
        length_G = (length_G + result[1] + 1).clamp(max=9)
    chain = p[0][:, None, None] * p[:, :, None] * p[None, :, :]
    numbers_G = (text_GL[:, 1] * VOCAB + text_GL[:, 2]) * VOCAB + text_GL[:, 3]
    assert_distribution(numbers_G, chain.flatten())


def test_a_row_depends_on_no_other() -> None:
    args = _rows((3, 1), 40, {"top_k": 3}, over_seeds=True)
    together = _verify(args, 2)
    for row in range(40):
        places = slice(3 * row, 3 * row + 3)
        alone = (args[0], args[1][places], torch.tensor([0, 3], dtype=torch.int32), *(a[places] for a in args[3:]))
        assert all(torch.equal(one[0], all_[row]) for one, all_ in zip(_verify(alone, 2), together, strict=True))


def test_a_draft_that_is_certain_is_always_accepted_and_an_impossible_one_never() -> None:
    *args, _ = _rows((1, 1), 500, {"top_k": 1}, over_seeds=True)
    args[3] = torch.tensor([0.0, 9.0, 0.0, 0.0, 0.0]).repeat(1500, 1)
    position = _rows((1, 1), 500, {}, over_seeds=True)[-1]
    assert (_verify((*args, position), 2)[1] == 2).all()
    args[3] = torch.tensor([0.0, 0.0, 9.0, 0.0, 0.0]).repeat(1500, 1)
    token_GJ, accepted, rejected, last = _verify((*args, position), 2)
    assert not accepted.any()
    assert (rejected == 2).all()
    assert (last == 2).all()
    assert token_GJ.tolist() == [[2, 0, 0]] * 500


def test_it_never_waits_for_the_device(assert_needs_no_values: Callable[[OpSpec], None]) -> None:
    assert_needs_no_values(VERIFY_REJECTION)

"""The classical acceptance of drafts: with the probability that the target gives them, else a token of what is left.

The rule of Leviathan, Kalman and Matias (2023) and of Chen et al. (2023) for a proposer that is sure of its draft (an
n-gram or suffix look-up): the draft has proposal probability 1. Every emitted token has the target's distribution, but
it is not the token that would have come without drafts. Suffixes: those of verify.py, and V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from isoinfer.backends.ops.composed import torch_composition
from isoinfer.backends.ops.logits import LogitsSpec
from isoinfer.backends.ops.philox import ACCEPT_STREAM, RESIDUAL_STREAM, draw_uniform, gumbel
from isoinfer.backends.ops.sample import argmax_reference, filter_logits, sample_reference
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample
from isoinfer.backends.ops.verify import Verified, drafts, leading, places, verify_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectionSpec:
    """`num_drafts`: K, the most drafts that a row carries; at least 1. `vocab_size`: V, the width of the logits."""

    num_drafts: int
    vocab_size: int


def verify_rejection_reference(
    static: RejectionSpec,
    token_P: torch.Tensor,
    input_T: torch.Tensor,
    rows_P: torch.Tensor,
    start_X: torch.Tensor,
    logits_PV: torch.Tensor,
    temperature_P: torch.Tensor,
    top_k_P: torch.Tensor,
    top_p_P: torch.Tensor,
    min_p_P: torch.Tensor,
    seed_P: torch.Tensor,
    position_P: torch.Tensor,
) -> Verified:
    """Like `verify`, with token_P what `sample` drew at every place from the same logits and parameters.

    A draft is accepted with its probability in the distribution that `sample` draws from. At the first draft that is
    not, a token is drawn from that distribution without the draft; where all are, the row's last token is token_P.
    Where the temperature is 0 this is `verify`.
    """
    place_GJ, drafted_GK = places(start_X, static.num_drafts, token_P.shape[0])
    draft_GK = drafts(input_T, rows_P, place_GJ)
    filtered_PV = filter_logits(logits_PV, temperature_P, top_k_P, top_p_P, min_p_P)
    lucky_P = draw_uniform(seed_P, position_P, ACCEPT_STREAM)
    accepts_GK = _accepts(filtered_PV, lucky_P, temperature_P == 0, token_P, draft_GK, place_GJ[:, :-1])
    accepted_G = leading(drafted_GK & accepts_GK)
    drafted_G = drafted_GK.sum(1)
    end_G = place_GJ.gather(1, accepted_G[:, None].long())[:, 0]  # the place of the row's last token
    refused_G1 = draft_GK.gather(1, accepted_G[:, None].clamp(max=static.num_drafts - 1).long())
    noise_GV = gumbel(seed_P[end_G], position_P[end_G], RESIDUAL_STREAM, static.vocab_size)
    other_G = _draw_other(filtered_PV[end_G], noise_GV, refused_G1)
    keeps_G = (accepted_G == drafted_G) | (temperature_P[end_G] == 0)
    last_token_G = torch.where(keeps_G, token_P[end_G], other_G)
    index_1J = torch.arange(static.num_drafts + 1, device=token_P.device)[None, :]
    token_GJ = torch.where(index_1J < accepted_G[:, None], torch.nn.functional.pad(draft_GK, (0, 1)), 0)
    token_GJ = torch.where(index_1J == accepted_G[:, None], last_token_G[:, None], token_GJ)
    return token_GJ, accepted_G, (drafted_G - accepted_G).to(torch.int32), last_token_G


def _accepts(
    filtered_PV: torch.Tensor,
    lucky_P: torch.Tensor,
    greedy_P: torch.Tensor,
    token_P: torch.Tensor,
    draft_GK: torch.Tensor,
    place_GK: torch.Tensor,
) -> torch.Tensor:
    """Whether each draft passes its own test, [G, K]."""
    p_GK = torch.softmax(filtered_PV, dim=-1)[place_GK, draft_GK.long()]
    return torch.where(greedy_P[place_GK], draft_GK == token_P[place_GK], lucky_P[place_GK] < p_GK)


def _draw_other(filtered_GV: torch.Tensor, noise_GV: torch.Tensor, refused_G1: torch.Tensor) -> torch.Tensor:
    """A token of each row's distribution without the refused one. int32 [G]."""
    scores_GV = (filtered_GV + noise_GV.to(filtered_GV.dtype)).scatter(1, refused_G1.long(), -torch.inf)
    return argmax_reference(LogitsSpec(vocab_size=filtered_GV.shape[1]), scores_GV)


def _samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    for vocab in (2, 7, 203):
        for label, num_drafts, args in verify_batches(gen, vocab):
            if num_drafts and (vocab == 2 or label != "many-rows"):
                static = RejectionSpec(num_drafts=num_drafts, vocab_size=vocab)
                yield Sample(label=f"{label}-of-{vocab}", static=static, args=_with_logits(gen, vocab, *args))


def _with_logits(
    gen: torch.Generator, vocab: int, token_P: torch.Tensor, input_T: torch.Tensor, *where: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Arguments of the op for a batch of `verify`: its token is what logits favour, and the input is kept."""
    P = token_P.shape[0]
    logits_PV = torch.randn(P, vocab, generator=gen)
    logits_PV.scatter_add_(1, token_P[:, None].long(), 3 * torch.rand(P, 1, generator=gen))

    def one_of(*values: float) -> torch.Tensor:
        return torch.tensor(values)[torch.randint(0, len(values), (P,), generator=gen)]

    choice = (one_of(0.0, 0.7, 1.0, 1.5), one_of(0, 1, 5).to(torch.int32), one_of(1.0, 0.8), one_of(0.0, 0.1))
    seed_P = torch.randint(-(2**62), 2**62, (P,), generator=gen, dtype=torch.int64)
    per_place = (*choice, seed_P, torch.randint(0, 100_000, (P,), generator=gen, dtype=torch.int32))
    drawn_P = sample_reference(LogitsSpec(vocab_size=vocab), logits_PV, *per_place)
    return drawn_P, input_T, *where, logits_PV, *per_place


VERIFY_REJECTION = OpSpec(
    name="verify_rejection",
    family="verify",
    signature=(
        "verify_rejection(token_P, input_T, rows_P, start_X, logits_PV, temperature_P, top_k_P, top_p_P, min_p_P, "
        "seed_P, position_P) -> (token_GJ, accepted_G, rejected_G, last_token_G)"
    ),
    static_type=RejectionSpec,
    reference=verify_rejection_reference,
    samples=_samples,
    error=ErrorModel(kind="tokens"),
    decomposition=torch_composition(verify_rejection_reference),
)

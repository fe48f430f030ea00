"""What is left of a host's prediction when the tokens it did not know yet are there: drafts for the next round.

Suffixes: G rows of the round whose tokens are there, W tokens of a prediction, K drafts, J = K + 1 tokens that a row
may emit. All int32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from isoinfer.backends.ops.composed import torch_composition
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeSpec:
    """`num_drafts`: K, the most drafts that a row carries; at least 1."""

    num_drafts: int


def consume_drafts_reference(
    static: ConsumeSpec,
    predicted_GW: torch.Tensor,
    count_G: torch.Tensor,
    token_GJ: torch.Tensor,
    accepted_G: torch.Tensor,
    own_GK: torch.Tensor,
    own_found_G: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first count_G[g] tokens of predicted_GW[g] were predicted to follow the context of the round before.

    If the accepted_G[g] + 1 tokens that the round emitted are the first of them, the drafts are the next ones, up to
    K: found_G[g] many, then 0. Where that leaves none, they are the device's own: own_GK[g] and own_found_G[g].
    """
    width = predicted_GW.shape[1]
    emitted_G1 = accepted_G[:, None] + 1
    index_1J = torch.arange(token_GJ.shape[1], dtype=torch.int32, device=token_GJ.device)[None, :]
    expected_GJ = predicted_GW.gather(1, index_1J.clamp(max=width - 1).long().expand_as(token_GJ))
    holds_G = ((expected_GJ == token_GJ) | (index_1J >= emitted_G1)).all(1)
    left_G = torch.where(holds_G, (count_G - emitted_G1[:, 0]).clamp(0, static.num_drafts), 0)
    index_1K = torch.arange(static.num_drafts, dtype=torch.int32, device=token_GJ.device)[None, :]
    next_GK = predicted_GW.gather(1, (emitted_G1 + index_1K).clamp(max=width - 1).long())
    draft_GK = torch.where(index_1K < left_G[:, None], next_GK, 0)
    return torch.where(left_G[:, None] > 0, draft_GK, own_GK), torch.where(left_G > 0, left_G, own_found_G)


def _samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)

    def random(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=gen, dtype=torch.int32)

    for label, K, W, rows, vocab in (
        ("one", 3, 7, 1, 2),
        ("usual", 5, 11, 40, 3),
        ("narrow", 4, 3, 30, 2),
        ("one-draft", 1, 3, 20, 2),
        ("many", 2, 5, 300, 2),
    ):
        predicted, count, accepted = random(vocab, rows, W), random(W + 1, rows), random(K + 1, rows)
        count[0] = W
        token = random(vocab, rows, K + 1)
        shared = min(W, K + 1)
        token[::2, :shared] = predicted[::2, :shared]  # half of the rows go on as predicted
        token[torch.arange(K + 1)[None, :] > accepted[:, None]] = 0
        args = (predicted, count, token, accepted, random(50_000, rows, K), random(K + 1, rows))
        yield Sample(label=label, static=ConsumeSpec(num_drafts=K), args=args)


CONSUME_DRAFTS = OpSpec(
    name="consume_drafts",
    family="propose",
    signature=(
        "consume_drafts(predicted_GW, count_G, token_GJ, accepted_G, own_GK, own_found_G) -> (draft_GK, found_G)"
    ),
    static_type=ConsumeSpec,
    reference=consume_drafts_reference,
    samples=_samples,
    error=ErrorModel(kind="exact"),
    decomposition=torch_composition(consume_drafts_reference),
)

"""Coupled acceptance of drafts: a draft counts where it is the token that the target sampled at its place anyway.

Lossless for every proposer: the tokens are those that would have come without drafts, only sooner. Suffixes:
T input tokens of a step, P places whose logits were sampled, G rows that sample, X = G + 1 (`start_X[g]` is the first
place of row g, the last entry is P), K drafts of a row, J = K + 1 tokens that a row may emit. All int32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from isoinfer.backends.ops.composed import torch_composition
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample

Verified = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySpec:
    """`num_drafts`: K, the most drafts that a row carries. 0 without speculation."""

    num_drafts: int


def verify_reference(
    static: VerifySpec, token_P: torch.Tensor, input_T: torch.Tensor, rows_P: torch.Tensor, start_X: torch.Tensor
) -> Verified:
    """Row g has 1 to K + 1 places. `rows_P[p]` is where place p's input token is, the draft after it is the next token.

    Accepted are the leading drafts that equal token_P at their place. Emitted are the tokens of these places and of
    the next one, the rest of token_GJ is 0; the last of them is last_token_G. Rejected are the row's other drafts.
    """
    place_GJ, drafted_GK = places(start_X, static.num_drafts, token_P.shape[0])
    sampled_GJ = token_P[place_GJ]
    hit_GK = drafted_GK & (drafts(input_T, rows_P, place_GJ) == sampled_GJ[:, : static.num_drafts])
    accepted_G = leading(hit_GK)
    index_1J = torch.arange(static.num_drafts + 1, device=token_P.device)[None, :]
    token_GJ = torch.where(index_1J <= accepted_G[:, None], sampled_GJ, 0)
    last_token_G = sampled_GJ.gather(1, accepted_G[:, None].long())[:, 0]
    return token_GJ, accepted_G, (drafted_GK.sum(1) - accepted_G).to(torch.int32), last_token_G


def places(start_X: torch.Tensor, num_drafts: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The places of each row, [G, J] int64, clamped to `count` of them, and which drafts it has, [G, K] bool."""
    index_1J = torch.arange(num_drafts + 1, device=start_X.device)[None, :]
    first_G1, end_G1 = start_X[:-1, None], start_X[1:, None]
    place_GJ = (first_G1 + index_1J).clamp(max=count - 1)
    return place_GJ, first_G1 + index_1J[:, 1:] < end_G1


def drafts(input_T: torch.Tensor, rows_P: torch.Tensor, place_GJ: torch.Tensor) -> torch.Tensor:
    """The draft after each place but the last, [G, K]; anything where a row has fewer."""
    next_GK = (rows_P[place_GJ[:, :-1]] + 1).clamp(max=input_T.shape[0] - 1)
    return input_T[next_GK.long()]


def leading(hit_GK: torch.Tensor) -> torch.Tensor:
    """How many of a row's first entries are true. int32."""
    return ((~hit_GK).cumsum(1) == 0).sum(1).to(torch.int32)


_DRAFTS: tuple[tuple[str, int, tuple[tuple[int, int], ...]], ...] = (
    ("no-drafts", 0, ((0, 0), (0, 0), (0, 0))),
    ("one-row", 4, ((4, 2),)),
    ("one-place", 4, ((0, 0),)),
    ("all-accepted", 3, ((3, 3), (3, 3))),
    ("none-accepted", 3, ((3, 0), (3, 0))),
    ("every-pattern", 3, tuple((d, a) for d in range(4) for a in range(d + 1))),
    ("many-rows", 5, tuple((r % 6, r % 7 % (r % 6 + 1)) for r in range(300))),
)
"""Label, K, and of each row its drafts and how many of them are accepted."""


def verify_batches(gen: torch.Generator, vocab: int) -> Iterator[tuple[str, int, tuple[torch.Tensor, ...]]]:
    """Label, K, and arguments of `verify` in which prefill rows, of which only the last token samples, are between.

    After the first rejected draft the later ones are equal again, which must not count.
    """
    for label, num_drafts, rows in _DRAFTS:
        inputs: list[int] = []
        sampled: list[int] = []
        input_places: list[int] = []
        starts = [0]
        for number, (drafted, accepted) in enumerate(rows):
            inputs += _tokens(gen, vocab, number % 3 * 2)  # the part of a prompt before the token that samples
            tokens = _tokens(gen, vocab, drafted + 1)
            input_places += range(len(inputs), len(inputs) + drafted + 1)
            inputs += [*_tokens(gen, vocab, 1), *tokens[:drafted]]
            if accepted < drafted:
                inputs[accepted - drafted] = (tokens[accepted] + 1) % vocab
            sampled += tokens
            starts.append(len(sampled))
        columns = (sampled, inputs, input_places, starts)
        yield label, num_drafts, tuple(torch.tensor(column, dtype=torch.int32) for column in columns)


def _tokens(gen: torch.Generator, vocab: int, count: int) -> list[int]:
    drawn: list[int] = torch.randint(0, vocab, (count,), generator=gen).tolist()
    return drawn


def _samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    for vocab in (50_000, 2):  # of two tokens, those that are not compared are equal half of the time
        for label, num_drafts, args in verify_batches(gen, vocab):
            yield Sample(label=f"{label}-of-{vocab}", static=VerifySpec(num_drafts=num_drafts), args=args)


VERIFY = OpSpec(
    name="verify",
    family="verify",
    signature="verify(token_P, input_T, rows_P, start_X) -> (token_GJ, accepted_G, rejected_G, last_token_G)",
    static_type=VerifySpec,
    reference=verify_reference,
    samples=_samples,
    error=ErrorModel(kind="exact"),
    decomposition=torch_composition(verify_reference),
)

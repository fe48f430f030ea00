"""Drafts by prompt lookup: what followed the last time that the context ended as it does now.

The rule is that of A. Saxena, "Prompt Lookup Decoding" (2023). Suffixes: G rows, K drafts, S slots, L tokens of a
history, E = L + 1 lengths of a context. All int32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from isoinfer.backends.ops.composed import torch_composition
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramSpec:
    """`num_drafts`: K. A match has `min_ngram` to `max_ngram` tokens, 1 <= min_ngram <= max_ngram."""

    num_drafts: int
    min_ngram: int
    max_ngram: int


def propose_ngram_reference(
    static: NgramSpec, history_SL: torch.Tensor, slot_G: torch.Tensor, length_G: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The context of row g is history_SL[slot_G[g], :length_G[g]]; a length beyond L counts as L.

    Its longest suffix of min_ngram to max_ngram tokens that also ends earlier is searched, of several the latest. The
    drafts are the tokens that follow there, up to K of them and up to the end of the context: found_G[g] many, then 0.
    """
    history_GL = history_SL[slot_G.long()]
    L = history_GL.shape[1]
    length_G1 = length_G[:, None].clamp(max=L)
    match_GE = _common_suffix(history_GL, length_G1, static.max_ngram)
    end_1E = torch.arange(L + 1, dtype=torch.int32, device=history_GL.device)[None, :]
    matches_GE = (match_GE >= static.min_ngram) & (end_1E < length_G1)
    best_G1 = torch.where(matches_GE, match_GE * (L + 1) + end_1E, 0).amax(1, keepdim=True)  # longest, then latest
    end_G1 = torch.where(best_G1 > 0, best_G1 % (L + 1), length_G1)
    index_GK = end_G1 + torch.arange(static.num_drafts, dtype=torch.int32, device=end_G1.device)[None, :]
    token_GK = history_GL.gather(1, index_GK.clamp(max=L - 1).long())
    found_G = (length_G1 - end_G1)[:, 0].clamp(max=static.num_drafts)
    return torch.where(index_GK < length_G1, token_GK, 0), found_G


def _common_suffix(history_GL: torch.Tensor, length_G1: torch.Tensor, limit: int) -> torch.Tensor:
    """How many of the last tokens of the context and of its first E tokens are equal, at most `limit`. int32 [G, E]."""
    rows, L = history_GL.shape
    match_GE = torch.zeros((rows, L + 1), dtype=torch.int32, device=history_GL.device)
    equal_GE = torch.ones_like(match_GE, dtype=torch.bool)
    for back in range(min(limit, L)):
        last_G1 = history_GL.gather(1, (length_G1 - 1 - back).clamp(min=0).long())
        equal_GE[:, : back + 1] = False  # shorter than the suffix
        equal_GE[:, back + 1 :] &= history_GL[:, : L - back] == last_G1
        match_GE += equal_GE
    return match_GE


def _samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    for label, K, low, high, vocab, L in (
        ("two-tokens", 4, 2, 4, 2, 40),
        ("three-tokens", 3, 1, 6, 3, 150),
        ("unigrams", 5, 1, 1, 8, 33),
        ("nothing-to-find", 5, 2, 3, 50_000, 64),
        ("longer-than-the-history", 8, 1, 20, 2, 9),
        ("one-draft", 1, 3, 3, 3, 100),
    ):
        history = torch.randint(0, vocab, (9, L), generator=gen, dtype=torch.int32)
        history[3] = 1
        slot = torch.tensor([8, 3, 0, 5, 1, 2, 7], dtype=torch.int32)
        length = torch.tensor([L, L - 2, 1, L // 2, 0, 3, L + 4], dtype=torch.int32)
        static = NgramSpec(num_drafts=K, min_ngram=low, max_ngram=high)
        yield Sample(label=label, static=static, args=(history, slot, length))
    yield _ends_and_starts()


def _ends_and_starts() -> Sample:
    """Rows by hand: the longest wins over the latest, the latest of equals, a match that overlaps the suffix."""
    rows = ([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], [5, 6, 1, 5, 6, 2, 5, 6], [4, 4, 4, 4], [1, 2, 1, 2, 1], [1, 2, 3, 4])
    history = torch.zeros((len(rows), 12), dtype=torch.int32)
    for slot, row in enumerate(rows):
        history[slot, : len(row)] = torch.tensor(row, dtype=torch.int32)
    slot_G = torch.arange(len(rows), dtype=torch.int32)
    length_G = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    static = NgramSpec(num_drafts=3, min_ngram=2, max_ngram=3)
    return Sample(label="by-hand", static=static, args=(history, slot_G, length_G))


PROPOSE_NGRAM = OpSpec(
    name="propose_ngram",
    family="propose",
    signature="propose_ngram(history_SL, slot_G, length_G) -> (draft_GK, found_G)",
    static_type=NgramSpec,
    reference=propose_ngram_reference,
    samples=_samples,
    error=ErrorModel(kind="exact"),
    decomposition=torch_composition(propose_ngram_reference),
)

"""What a round takes over from the round before without the host: last tokens, drafts, corrected lengths, slots.

`map_R` names, for each row, the row of the same request in the previous round, or -1 where there is none. Suffixes:
T tokens, R rows, X = R + 1 (`query_start_X[r]` is the first token of row r, the last entry is T), G rows of the
previous round, K drafts of a row, B blocks of a row. All int32. Every row has a token; G is at least 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from isoinfer.backends.ops.composed import torch_composition
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class RemapSpec:
    """`num_drafts`: K, the most drafts that a row carries. 0 without speculation."""

    num_drafts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemapSlotsSpec:
    """Tokens in a KV block."""

    block_size: int


def remap_reference(
    static: RemapSpec,
    token_ids_T: torch.Tensor,
    positions_T: torch.Tensor,
    kv_len_R: torch.Tensor,
    query_start_X: torch.Tensor,
    map_R: torch.Tensor,
    last_token_G: torch.Tensor,
    rejected_G: torch.Tensor,
    draft_GK: torch.Tensor,
) -> None:
    """Row r with m = map_R[r] >= 0 gets the tokens last_token_G[m], draft_GK[m, 0], draft_GK[m, 1], ...

    It has at most K + 1 tokens. Its positions and kv_len_R[r] are lowered by rejected_G[m], the drafts of the
    previous round that were not accepted. With K = 0 none can be: `rejected_G` is not read and may be empty.
    Other rows stay as they are.
    """
    row_T, index_T = _places(query_start_X, token_ids_T.shape[0])
    source_R = map_R.clamp(min=0).long()
    token_GX = torch.cat((last_token_G[:, None], draft_GK), 1)
    new_T = token_GX[source_R[row_T], index_T.clamp(max=static.num_drafts)]
    token_ids_T.copy_(torch.where(map_R[row_T] >= 0, new_T, token_ids_T))
    if static.num_drafts:
        rejected_R = torch.where(map_R >= 0, rejected_G[source_R], 0)
        positions_T.sub_(rejected_R[row_T])
        kv_len_R.sub_(rejected_R)


def remap_slots_reference(
    static: RemapSlotsSpec,
    slots_T: torch.Tensor,
    positions_T: torch.Tensor,
    query_start_X: torch.Tensor,
    map_R: torch.Tensor,
    block_table_RB: torch.Tensor,
) -> None:
    """The KV slot of every token of a mapped row, from its position; slots of other rows stay as they are."""
    row_T, _ = _places(query_start_X, slots_T.shape[0])
    mapped_T = map_R[row_T] >= 0
    position_T = torch.where(mapped_T, positions_T, 0).long()
    block_T = block_table_RB[row_T, position_T // static.block_size]
    slot_T = block_T * static.block_size + position_T % static.block_size
    slots_T.copy_(torch.where(mapped_T, slot_T, slots_T))


def _places(query_start_X: torch.Tensor, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token's row, and its index within the row; int64."""
    token_T = torch.arange(tokens, dtype=torch.int32, device=query_start_X.device)
    row_T = torch.searchsorted(query_start_X[1:], token_T, right=True)
    return row_T, token_T.long() - query_start_X[row_T]


_DRAFTS = (0, 1, 3)
_CASES: tuple[tuple[str, int, tuple[int, ...], tuple[int, ...]], ...] = (
    ("one", 1, (1,), (0,)),
    ("one-unmapped", 2, (1,), (-1,)),
    ("none-mapped", 3, (2, 1, 9), (-1, -1, -1)),
    ("all-mapped", 5, (1, 1, 1, 1, 1), (0, 1, 2, 3, 4)),
    ("permuted", 5, (1, 1, 1, 1, 1), (4, 2, 0, 1, 3)),
    ("fewer-than-before", 8, (1, 1, 1), (7, 0, 5)),
    ("more-than-before", 2, (1, 1, 1, 1, 1, 1), (-1, 1, -1, -1, 0, -1)),
    ("prefill-among-decodes", 4, (1, 37, 1, 1, 5, 1, 16), (3, -1, 0, -1, -1, 1, -1)),
    ("many-rows", 150, (1,) * 140, tuple(-1 if r % 5 == 0 else 7 * r % 150 for r in range(140))),
)
"""Label, G, tokens of each row, map. A mapped row of one token gets up to K more where there are drafts."""


def _lengths(lengths: Sequence[int], source_R: Sequence[int], num_drafts: int) -> list[int]:
    """Mapped rows have 1 to K + 1 tokens: all drafts, none, and numbers between."""
    return [
        1 + (num_drafts - r) % (num_drafts + 1) if source >= 0 else length
        for r, (length, source) in enumerate(zip(lengths, source_R, strict=True))
    ]


def _batches(gen: torch.Generator, num_drafts: int) -> Iterator[tuple[str, int, list[int], torch.Tensor, torch.Tensor]]:
    """Label, G, tokens of each row, map_R, and positions of each row's first token."""
    for label, G, lengths, source_R in _CASES:
        start_R = num_drafts + torch.randint(0, 90, (len(lengths),), generator=gen, dtype=torch.int32)
        yield label, G, _lengths(lengths, source_R, num_drafts), torch.tensor(source_R, dtype=torch.int32), start_R


def _laid_out(lengths: Sequence[int], start_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """positions_T and query_start_X."""
    position_T = torch.cat([start + torch.arange(n) for n, start in zip(lengths, start_R.tolist(), strict=True)])
    query_start_X = torch.tensor([0, *lengths]).cumsum(0)
    return position_T.to(torch.int32), query_start_X.to(torch.int32)


def _remap_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)

    def random(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=gen, dtype=torch.int32)

    for K in _DRAFTS:
        for label, G, lengths, map_R, start_R in _batches(gen, K):
            positions_T, query_start_X = _laid_out(lengths, start_R)
            kv_len_R = start_R + torch.tensor(lengths, dtype=torch.int32)
            rejected_G = random(0, K + 1, G if K else 0)
            inputs = (random(0, 50_000, len(positions_T)), positions_T, kv_len_R, query_start_X, map_R)
            before = (random(0, 50_000, G), rejected_G, random(0, 50_000, G, K))
            yield Sample(label=f"{label}-{K}-drafts", static=RemapSpec(num_drafts=K), args=(*inputs, *before))


def _remap_slots_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    for K, block_size in zip(_DRAFTS, (16, 1, 64), strict=True):
        for label, _, lengths, map_R, start_R in _batches(gen, K):
            positions_T, query_start_X = _laid_out(lengths, start_R)
            blocks = int(positions_T.max()) // block_size + 1
            table_RB = torch.randperm(len(lengths) * blocks, generator=gen).view(len(lengths), blocks)
            slots_T = torch.randint(0, 10_000, positions_T.shape, generator=gen, dtype=torch.int32)
            args = (slots_T, positions_T, query_start_X, map_R, table_RB.to(torch.int32))
            yield Sample(label=f"{label}-{block_size}", static=RemapSlotsSpec(block_size=block_size), args=args)


REMAP = OpSpec(
    name="remap",
    family="remap",
    signature="remap(token_ids_T, positions_T, kv_len_R, query_start_X, map_R, last_token_G, rejected_G, draft_GK)",
    static_type=RemapSpec,
    reference=remap_reference,
    samples=_remap_samples,
    error=ErrorModel(kind="exact"),
    writes=("token_ids_T", "positions_T", "kv_len_R"),
    decomposition=torch_composition(remap_reference),
)

REMAP_SLOTS = OpSpec(
    name="remap_slots",
    family="remap",
    signature="remap_slots(slots_T, positions_T, query_start_X, map_R, block_table_RB)",
    static_type=RemapSlotsSpec,
    reference=remap_slots_reference,
    samples=_remap_slots_samples,
    error=ErrorModel(kind="exact"),
    writes=("slots_T",),
    decomposition=torch_composition(remap_slots_reference),
)

"""Appending a round's tokens to the token history that stays on the device. Suffixes: G rows, J tokens a row may emit,
S slots, L tokens of a history. All int32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from isoinfer.backends.ops.composed import torch_composition
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySpec:
    """`num_tokens`: J, the most tokens that a row emits in one round."""

    num_tokens: int


def append_history_reference(
    static: HistorySpec,
    history_SL: torch.Tensor,
    slot_G: torch.Tensor,
    length_G: torch.Tensor,
    token_GJ: torch.Tensor,
    count_G: torch.Tensor,
) -> None:
    """history_SL[slot_G[g]] gets token_GJ[g, :count_G[g]] from position length_G[g] on; past its end they are dropped.

    Rows that append something have different slots.
    """
    index_1J = torch.arange(static.num_tokens, device=token_GJ.device)[None, :]
    position_GJ = length_G[:, None] + index_1J
    written_GJ = (index_1J < count_G[:, None]) & (position_GJ < history_SL.shape[1])
    where = (slot_G[:, None].expand_as(position_GJ).long(), position_GJ.clamp(max=history_SL.shape[1] - 1))
    # Added, not stored: what is not written adds zero, wherever it is clamped to.
    change_GJ = torch.where(written_GJ, token_GJ - history_SL[where], 0)
    history_SL.index_put_(where, change_GJ, accumulate=True)


def _samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    cases: tuple[tuple[str, int, int, list[int], list[int], list[int]], ...] = (  # J, L, slots, lengths, counts
        ("one", 1, 8, [0], [3], [1]),
        ("none", 4, 8, [1, 0], [3, 0], [0, 0]),
        ("some", 4, 30, [4, 0, 2, 3], [0, 7, 21, 26], [4, 1, 0, 3]),
        ("past-the-end", 5, 12, [1, 3, 0, 2], [11, 8, 12, 40], [5, 5, 2, 1]),
        ("many", 6, 100, list(range(150))[::-1], [r * 13 % 100 for r in range(150)], [r % 7 for r in range(150)]),
    )
    for label, J, L, slots, lengths, counts in cases:
        history = torch.randint(0, 50_000, (max(slots) + 2, L), generator=gen, dtype=torch.int32)
        tokens = torch.randint(0, 50_000, (len(slots), J), generator=gen, dtype=torch.int32)
        slot, length, count = (torch.tensor(column, dtype=torch.int32) for column in (slots, lengths, counts))
        yield Sample(label=label, static=HistorySpec(num_tokens=J), args=(history, slot, length, tokens, count))


APPEND_HISTORY = OpSpec(
    name="append_history",
    family="propose",
    signature="append_history(history_SL, slot_G, length_G, token_GJ, count_G)",
    static_type=HistorySpec,
    reference=append_history_reference,
    samples=_samples,
    error=ErrorModel(kind="exact"),
    writes=("history_SL",),
    decomposition=torch_composition(append_history_reference),
)

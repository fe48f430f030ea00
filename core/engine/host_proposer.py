"""Predicts what running requests will say next, on the host, from what they have said: one SuffixIndex a slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isoinfer.speculation.suffix_index import SuffixIndex

if TYPE_CHECKING:
    from isoinfer.engine.slot_table import SlotTable
    from isoinfer.speculation.config import SpeculativeConfig


class HostProposer:
    """Keeps the table's drafts up to date. They follow the settled tokens, past those that are in flight.

    At depth 2 a prediction is long enough for the round in flight and the drafts of the next one.
    """

    def __init__(self, config: SpeculativeConfig, table: SlotTable, depth: int) -> None:
        self._config, self._table = config, table
        self._in_flight = config.num_drafts + 1 if depth > 1 else 0
        self._indices: dict[int, SuffixIndex] = {}

    def enter(self, slot: int, tokens: Sequence[int]) -> None:
        """A request takes `slot` with these known tokens."""
        config = self._config
        index = SuffixIndex(
            min_match=config.min_match, max_match=config.max_match, drafts_per_token=config.drafts_per_token
        )
        index.append(tokens)
        self._indices[slot] = index

    def leave(self, slot: int) -> None:
        """It is gone."""
        del self._indices[slot]

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        """The request in `slot` has said `tokens`: predict what follows."""
        index = self._indices[slot]
        index.append(tokens)
        predicted = index.propose(self._config.num_drafts, self._in_flight)
        self._table.drafts_SK[slot, : len(predicted)] = predicted
        self._table.num_drafts_S[slot] = len(predicted)


def prediction_width(config: SpeculativeConfig) -> int:
    """Tokens that the drafts of a slot take: a proposer on the device makes those of one round only."""
    return config.num_drafts if config.on_device else 2 * config.num_drafts + 1

"""What a host proposer hands to a round: drafts, or a prediction long enough to outlast the round in flight.

While a round of K drafts is in flight the host does not know the up to K + 1 tokens that it emits. It predicts these
and K more; the op `consume_drafts` finds on the device what is left. Suffixes: G rows, W tokens of a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isoinfer.speculation.suffix_index import SuffixIndex

if TYPE_CHECKING:
    from isoinfer.backends.interface import Int32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftWindow:
    """`predicted_GW[g, :count_G[g]]` is predicted to follow the settled context of row g; the rest is 0."""

    predicted_GW: Int32Array
    count_G: Int32Array


def draft_window(rows: Sequence[SuffixIndex], num_drafts: int, *, in_flight: bool) -> DraftWindow:
    """The prediction for each row: W is `num_drafts`, and with a round in flight the tokens that it may emit more."""
    unknown = num_drafts + 1 if in_flight else 0
    predicted_GW = np.zeros((len(rows), unknown + num_drafts), dtype=np.int32)
    count_G = np.zeros(len(rows), dtype=np.int32)
    for row, index in enumerate(rows):
        tokens = index.propose(num_drafts, unknown)
        predicted_GW[row, : len(tokens)] = tokens
        count_G[row] = len(tokens)
    return DraftWindow(predicted_GW=predicted_GW, count_G=count_G)

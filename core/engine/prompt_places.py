"""Which tokens of a step must report the log-probability of the prompt token that follows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isoinfer.engine.request import Request


@dataclass(frozen=True, slots=True)
class Row:
    """A request's share of a step: `count` tokens from where it stands."""

    request: Request
    count: int


def prompt_places(rows: Sequence[Row]) -> dict[str, Any]:
    """The StepPlan's prompt log-probability fields. Empty arrays, at no cost, where nobody asks."""
    places: list[tuple[int, int, int, int]] = []
    wanted, offset = 0, 0
    for index, row in enumerate(rows):
        request, sampling = row.request, row.request.sampling
        if sampling.num_prompt_logprobs >= 0:
            first = max(request.num_computed, request.num_prompt_logprobs_done)
            last = min(request.num_computed + row.count, request.prompt_len - 1)
            wanted = max(wanted, sampling.num_prompt_logprobs)
            places += [
                (offset + p - request.num_computed, int(request.tokens_L[p + 1]), index, p + 1)
                for p in range(first, last)
            ]
        offset += row.count
    index_Q, target_Q, row_Q, position_Q = np.array(places, dtype=np.int32).reshape(-1, 4).T
    return {
        "prompt_index_Q": index_Q.copy(),
        "prompt_target_Q": target_Q.copy(),
        "prompt_row_Q": row_Q.copy(),
        "prompt_position_Q": position_Q.copy(),
        "num_prompt_logprobs": wanted,
    }

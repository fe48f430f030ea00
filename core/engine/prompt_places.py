"""Which tokens of a step must report the log-probability of the prompt token that follows them."""

from __future__ import annotations

from typing import Any

import numpy as np

from isoinfer.engine.messages import Int32Array
from isoinfer.engine.slot_table import SlotTable

_NOTHING: Int32Array = np.zeros(0, dtype=np.int32)
NOBODY_ASKS: dict[str, Any] = {
    "prompt_index_Q": _NOTHING,
    "prompt_target_Q": _NOTHING,
    "prompt_row_Q": _NOTHING,
    "prompt_position_Q": _NOTHING,
    "num_prompt_logprobs": 0,
}
"""What almost every step has; nobody writes into a plan."""


def prompt_places(table: SlotTable, slot_R: Int32Array, start_R: Int32Array, count_R: Int32Array) -> dict[str, Any]:
    """The StepPlan's prompt log-probability fields. Empty arrays, at little cost, where nobody asks."""
    places: list[tuple[int, int, int, int]] = []
    wanted = 0
    asks_R = table.num_prompt_logprobs_S[slot_R] >= 0
    if not asks_R.any():
        return NOBODY_ASKS
    end_R = np.cumsum(count_R)
    for row in np.flatnonzero(asks_R).tolist():
        slot, start, count = int(slot_R[row]), int(start_R[row]), int(count_R[row])
        request = table.requests[slot]
        assert request is not None, slot
        first = max(start, request.num_prompt_logprobs_done, request.sampling.prompt_logprobs_start - 1)
        last = min(start + count, request.prompt_len - 1)
        wanted = max(wanted, request.sampling.num_prompt_logprobs)
        offset = int(end_R[row]) - count - start
        targets = table.tokens_SL[slot, first + 1 : last + 1].tolist() if last > first else []
        places += [(offset + p, target, row, p + 1) for p, target in enumerate(targets, start=first)]
    index_Q, target_Q, row_Q, position_Q = np.array(places, dtype=np.int32).reshape(-1, 4).T
    return {
        "prompt_index_Q": index_Q.copy(),
        "prompt_target_Q": target_Q.copy(),
        "prompt_row_Q": row_Q.copy(),
        "prompt_position_Q": position_Q.copy(),
        "num_prompt_logprobs": wanted,
    }

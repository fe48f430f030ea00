"""How far every running request has come, by slot, in arrays: what a step touches, it touches for all rows at once.

    confirmed <= committed <= scheduled      tokens whose KV is computed and settled; will be, whatever is
                                             rejected; may be, if every draft in flight is accepted

Suffixes: S slots, R rows, L tokens, K drafts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from isoinfer.engine.messages import Int32Array
from isoinfer.engine.plan import BoolArray, Int64Array
from isoinfer.engine.request import NO_SLOT, Request

NOBODY = -1


def _ints(num_slots: int) -> Int32Array:
    return np.zeros(num_slots, dtype=np.int32)


class SlotTable:
    """One row of numbers per slot. `width`: tokens of the longest request; `num_drafts`: width of the drafts.

    `known`: tokens that the host knows (prompt and settled output). `outputs`: upper bound of output tokens in
    flight; `rounds`: their lower bound, the sampling rounds in flight. `inflight`: tokens scheduled and not
    settled, which outlive the request until its last step settles. `row`: its row in step `last_step`.
    `has_entered`: the request is new here, no step has computed it in this slot. `write_floor`: tokens before it have
    their blocks from the prefix cache, which nobody may write. `floor`: what lies before it is not in the slot's rings.
    """

    def __init__(self, *, num_slots: int, width: int, num_drafts: int) -> None:
        self.tokens_SL: Int32Array = np.empty((num_slots, width), dtype=np.int32)
        self.drafts_SK: Int32Array = np.zeros((num_slots, num_drafts), dtype=np.int32)
        self.number_S: Int64Array = np.full(num_slots, NOBODY, dtype=np.int64)
        self.epoch_S, self.known_S, self.limit_S = _ints(num_slots), _ints(num_slots), _ints(num_slots)
        self.confirmed_S, self.scheduled_S = _ints(num_slots), _ints(num_slots)
        self.outputs_S, self.rounds_S, self.inflight_S = _ints(num_slots), _ints(num_slots), _ints(num_slots)
        self.num_drafts_S, self.row_S = _ints(num_slots), _ints(num_slots)
        self.num_prompt_logprobs_S = _ints(num_slots)
        self.floor_S, self.write_floor_S = _ints(num_slots), _ints(num_slots)
        self.has_entered_S: BoolArray = np.zeros(num_slots, dtype=np.bool_)
        self.last_step_S: Int64Array = np.zeros(num_slots, dtype=np.int64)
        self.requests: list[Request | None] = [None] * num_slots

    def enter(self, slot: int, request: Request, num_cached: int, num_replayed: int = 0) -> None:
        """`request` takes `slot`, with KV of its first `num_cached` tokens, the last of which are computed again."""
        assert self.inflight_S[slot] == 0, f"slot {slot} is still in flight"
        count = request.known_L.size
        self.tokens_SL[slot, :count] = request.known_L
        self.number_S[slot], self.epoch_S[slot] = request.number, request.epoch
        self.known_S[slot], self.limit_S[slot] = count, request.limit
        self.write_floor_S[slot] = num_cached
        self.confirmed_S[slot] = self.scheduled_S[slot] = self.floor_S[slot] = num_cached - num_replayed
        self.outputs_S[slot] = self.rounds_S[slot] = self.num_drafts_S[slot] = 0
        self.num_prompt_logprobs_S[slot] = request.sampling.num_prompt_logprobs
        self.has_entered_S[slot] = True
        self.requests[slot] = request

    def leave(self, slot: int) -> None:
        """The request lets go of `slot` and keeps its tokens. Steps in flight may still name the slot."""
        request = self.requests[slot]
        assert request is not None, slot
        request.known_L = self.tokens_SL[slot, : self.known_S[slot]].copy()
        request.slot = NO_SLOT
        self.requests[slot] = None
        self.number_S[slot] = NOBODY

    def tokens(self, slot: int) -> Int32Array:
        """All tokens of `slot`'s request, known and to come: a view that grows with it."""
        tokens_L: Int32Array = self.tokens_SL[slot]
        return tokens_L

    def need(self, slots_R: Int32Array) -> Int32Array:
        """Tokens that each slot could compute next: 1 while decoding, also when that token is in flight."""
        need_R: Int32Array = self.known_S[slots_R] + self.outputs_S[slots_R] - self.scheduled_S[slots_R]
        return need_R

    def may_go_on(self, slots_R: Int32Array) -> BoolArray:
        """Whether the request is not sure to be complete with what is in flight, even if all drafts are rejected."""
        short_R: BoolArray = self.known_S[slots_R] + self.rounds_S[slots_R] < self.limit_S[slots_R]
        return short_R

    def is_current(self, slots_R: Int32Array, number_R: Int64Array, epoch_R: Int32Array) -> BoolArray:
        """Whether the rows of a plan still are what their slots hold; others belong to requests that are gone."""
        current_R: BoolArray = (self.number_S[slots_R] == number_R) & (self.epoch_S[slots_R] == epoch_R)
        return current_R

    def submit(self, slots_R: Int32Array, count_R: Int32Array, new_R: Int32Array, step_id: int) -> None:
        """Rows of a step that is about to run: `count` tokens each, which may give up to `new` output tokens."""
        self.scheduled_S[slots_R] += count_R
        self.inflight_S[slots_R] += count_R
        self.outputs_S[slots_R] += new_R
        self.rounds_S[slots_R] += new_R > 0
        self.last_step_S[slots_R] = step_id
        self.row_S[slots_R] = np.arange(slots_R.size, dtype=np.int32)
        self.num_drafts_S[slots_R] = 0

    def settle(self, slots_R: Int32Array, count_R: Int32Array, new_R: Int32Array, rejected_R: Int32Array) -> None:
        """Current rows of a step that is done: what `submit` noted comes true, but for the rejected drafts."""
        self.confirmed_S[slots_R] += count_R - rejected_R
        self.scheduled_S[slots_R] -= rejected_R
        self.outputs_S[slots_R] -= new_R
        self.rounds_S[slots_R] -= new_R > 0

    def append(self, slots_G: Int32Array, token_GJ: Int32Array, count_G: Int32Array) -> None:
        """New output tokens of each slot."""
        for j in range(token_GJ.shape[1]):
            more_G: npt.NDArray[np.bool_] = count_G > j
            slots = slots_G[more_G]
            self.tokens_SL[slots, self.known_S[slots]] = token_GJ[more_G, j]
            self.known_S[slots] += 1

    def rewind(self) -> None:
        """Every step in flight was given up: what is not settled is scheduled again."""
        self.scheduled_S[:] = self.confirmed_S
        for column_S in (self.outputs_S, self.rounds_S, self.inflight_S, self.num_drafts_S):
            column_S[:] = 0
        self.has_entered_S[:] = True

    def check(self) -> None:
        """Assert the order of counts in every slot that is in use."""
        used_S = self.number_S != NOBODY
        committed_S = self.scheduled_S - np.maximum(self.outputs_S - self.rounds_S, 0)
        assert (self.confirmed_S <= committed_S)[used_S].all(), "more is confirmed than committed"
        assert (committed_S <= self.scheduled_S)[used_S].all(), "more is committed than scheduled"
        assert (self.scheduled_S <= self.known_S + self.outputs_S)[used_S].all(), (
            "a token is scheduled that nobody gives"
        )
        assert (self.known_S <= self.limit_S)[used_S].all(), "a request is too long"
        assert (self.inflight_S >= 0).all(), "tokens in flight are negative"
        assert (self.scheduled_S - self.confirmed_S <= self.inflight_S)[used_S].all(), "scheduled without a step"
        rounds_fit_S = (self.outputs_S >= self.rounds_S) & (self.rounds_S >= 0)
        assert rounds_fit_S[used_S].all(), "more sampling rounds than tokens"

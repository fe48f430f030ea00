"""Builds the TokenUpdates of one settled step, cutting the step's log-probabilities to each request.

Suffixes: P places of the step, Q prompt positions of the step, X best tokens.
"""

from __future__ import annotations

import numpy as np

from isoinfer.engine.messages import TokenLogprobs, TokenUpdate
from isoinfer.engine.plan import Int64Array, StepPlan, StepResult
from isoinfer.engine.request import Request


class UpdateBuilder:
    """Collects what each row of one step means for its request."""

    def __init__(self, plan: StepPlan, result: StepResult) -> None:
        self._plan, self._result = plan, result
        self._has_prompt_logprobs = result.prompt_logprobs is not None
        self.updates: list[TokenUpdate] = []

    def add(self, request: Request, row: int, tokens: tuple[int, ...], place: int, reason: str) -> None:
        """Row `row` of the step gave `tokens`, the first of which was sampled at `place`."""
        prompt_logprobs, start = self._prompt_logprobs(request, row) if self._has_prompt_logprobs else (None, 0)
        if not tokens and prompt_logprobs is None:
            return
        self.updates.append(
            TokenUpdate(
                request_id=request.request_id,
                token_ids=tokens,
                finish_reason=reason,
                stop_token=tokens[-1] if reason == "stop" else -1,
                logprobs=self._logprobs(request, place, len(tokens)),
                prompt_logprobs=prompt_logprobs,
                prompt_logprobs_start=start,
                num_cached_tokens=request.num_cached_tokens,
            )
        )

    def _logprobs(self, request: Request, place: int, count: int) -> TokenLogprobs | None:
        wanted = request.sampling.num_logprobs
        if wanted < 0 or not count or self._result.logprobs is None:
            return None
        return _cut(self._result.logprobs, np.arange(place, place + count), wanted)

    def _prompt_logprobs(self, request: Request, row: int) -> tuple[TokenLogprobs | None, int]:
        """Positions of this row not yet delivered: a restarted request computes its prompt again."""
        plan, logprobs = self._plan, self._result.prompt_logprobs
        if logprobs is None or request.sampling.num_prompt_logprobs < 0:
            return None, 0
        done = request.num_prompt_logprobs_done
        chosen = np.flatnonzero((plan.prompt_row_Q == row) & (plan.prompt_position_Q > done))
        if chosen.size == 0:
            return None, 0
        positions = plan.prompt_position_Q[chosen]
        request.num_prompt_logprobs_done = int(positions[-1])
        return _cut(logprobs, chosen, request.sampling.num_prompt_logprobs), int(positions[0])


def _cut(logprobs: TokenLogprobs, rows: Int64Array, width: int) -> TokenLogprobs:
    return TokenLogprobs(
        logprob_T=logprobs.logprob_T[rows],
        rank_T=logprobs.rank_T[rows],
        top_ids_TX=logprobs.top_ids_TX[rows, :width],
        top_logprobs_TX=logprobs.top_logprobs_TX[rows, :width],
    )

"""Builds the TokenUpdates of one settled step, cutting the step's log-probabilities to each request.

Suffixes: Q prompt positions of the step, X best tokens.
"""

from __future__ import annotations

import numpy as np

from isoinfer.engine.messages import TokenLogprobs, TokenUpdate
from isoinfer.engine.plan import StepPlan, StepResult
from isoinfer.engine.request import Request


class UpdateBuilder:
    """Collects what each row of one step means for its request."""

    def __init__(self, plan: StepPlan, result: StepResult) -> None:
        self._plan, self._result = plan, result
        self.updates: list[TokenUpdate] = []

    def add(self, request: Request, row: int, token: int | None, sampled: int, reason: str) -> None:
        """Row `row` of the step; `sampled` is its index among the sampling rows, used if `token` is set."""
        prompt_logprobs, start = self._prompt_logprobs(request, row)
        if token is None and prompt_logprobs is None:
            return
        self.updates.append(
            TokenUpdate(
                request_id=request.request_id,
                token_ids=() if token is None else (token,),
                finish_reason=reason,
                stop_token=token if reason == "stop" and token is not None else -1,
                logprobs=None if token is None else self._logprobs(request, sampled),
                prompt_logprobs=prompt_logprobs,
                prompt_logprobs_start=start,
            )
        )

    def _logprobs(self, request: Request, sampled: int) -> TokenLogprobs | None:
        wanted = request.sampling.num_logprobs
        if wanted < 0 or self._result.logprobs is None:
            return None
        return _cut(self._result.logprobs, np.array([sampled]), wanted)

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


def _cut(logprobs: TokenLogprobs, rows: np.ndarray[tuple[int], np.dtype[np.int64]], width: int) -> TokenLogprobs:
    return TokenLogprobs(
        logprob_T=logprobs.logprob_T[rows],
        rank_T=logprobs.rank_T[rows],
        top_ids_TX=logprobs.top_ids_TX[rows, :width],
        top_logprobs_TX=logprobs.top_logprobs_TX[rows, :width],
    )

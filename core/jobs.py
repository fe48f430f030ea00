"""What a job of prompts is made of: prompts, a setting for each, its rank, and the output of one that was refused."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isoinfer.errors import UserError
from isoinfer.outputs import RequestMetrics, RequestOutput
from isoinfer.sampling_params import SamplingParams

Prompt = str | Sequence[int]
Params = SamplingParams | Sequence[SamplingParams] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """What of a request only the scheduler needs."""

    priority: int = 0
    cache_salt: str | None = None


FIRST_COME = Rank()


def is_one_prompt(prompts: Any) -> bool:
    """Whether it is a single prompt: a text, or token ids: a list, an array or a tensor whose items are numbers."""
    if isinstance(prompts, str) or len(prompts) == 0:
        return isinstance(prompts, str)
    return not isinstance(prompts[0], str | Sequence) and getattr(prompts[0], "ndim", 0) == 0


def params_of(params: Params, size: int) -> list[SamplingParams | None]:
    """One for each of `size` prompts. UserError if the numbers differ."""
    if params is None or isinstance(params, SamplingParams):
        return [params] * size
    if len(params) != size:
        raise UserError(f"{size} prompts but {len(params)} sampling_params; give one for all or one for each")
    return list(params)


def refused(request_id: str, prompt: Prompt | None, error: str) -> RequestOutput:
    """The output of a request that was never started."""
    now = time.monotonic()
    return RequestOutput(
        request_id=request_id,
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_token_ids=(),
        outputs=[],
        metrics=RequestMetrics(arrival=now, finished=now),
        finished=True,
        error=error,
    )

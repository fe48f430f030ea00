"""What a request gives back: text, token ids, log-probabilities and times. Plain data, filled by the front end.

While a request runs, each of its outputs holds everything so far; text and token ids only ever grow.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """Log-probability (natural log) of one token, its 1-based rank in the vocabulary, and its own text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Times in seconds of one monotonic clock; None = not reached."""

    arrival: float
    first_token: float | None = None
    finished: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One of the n completions of a request.

    `finish_reason`: None while running, else "stop", "length", "abort" or "error". `stop_reason`: the stop
    string or the stop token id the user gave; None for the model's own end token and every other end.
    `logprobs[i]` belongs to `token_ids[i]`: the token itself first, then the best others in order.
    `text_delta` and `num_new_tokens` count from the previous output of the same request: all deltas
    together are exactly `text` and `token_ids`.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    text_delta: str = ""
    num_new_tokens: int = 0

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def new_token_ids(self) -> tuple[int, ...]:
        """The token ids that belong to this delta."""
        return self.token_ids[len(self.token_ids) - self.num_new_tokens :]

    @property
    def new_logprobs(self) -> list[dict[int, Logprob]] | None:
        """The entries of `logprobs` that belong to this delta."""
        if self.logprobs is None:
            return None
        return self.logprobs[len(self.logprobs) - self.num_new_tokens :]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """The state of one request. `outputs` has n entries in index order; `finished` when all of them are.

    `prompt` is None where token ids were given. `prompt_logprobs[p]` belongs to prompt token p; entry 0 is
    None, since nothing precedes it; the list is None until it is complete (or the request ends without it).
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    finished: bool = False
    error: str | None = None
    num_cached_tokens: int = 0

"""The messages between front end and core: plain data, so that the core can live in another process.

The front end knows text, templates and stop strings; the core knows only token ids and numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]

GREEDY_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSampling:
    """What the core needs to know to sample one request, already validated and resolved by the front end.

    `seed`: 64-bit, always present. `stop_token_ids`: all ids that end the request (EOS included unless
    ignored). `top_k` 0 = off. `num_logprobs`/`num_prompt_logprobs`: -1 = none, 0 = only the token's own.
    `prompt_logprobs_start`: position of the first prompt token that wants them; what comes before may be cached.
    `bad_words`: token sequences that must not be completed. `allowed_token_ids`: empty = all.
    """

    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bias_token_ids: tuple[int, ...] = ()
    bias_values: tuple[float, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    num_logprobs: int = -1
    num_prompt_logprobs: int = -1
    prompt_logprobs_start: int = 1

    @property
    def has_penalties(self) -> bool:
        """Whether any token-count penalty applies."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRequest:
    """A new request. `request_id` is unique among unfinished requests. Higher `priority` number = later.

    `cache_salt`: only requests with the same salt share cached KV. Without `prefix_caching` the request
    computes its whole prompt; what it computes is cached for others.
    """

    request_id: str
    prompt_token_ids: Int32Array
    sampling: CoreSampling
    priority: int = 0
    cache_salt: str | None = None
    prefix_caching: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRequest:
    """Stop a request by its exact id. Unknown ids are ignored: it may have just finished."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probabilities of T tokens: own `logprob_T` and 1-based `rank_T`, and the best X of each."""

    logprob_T: Float32Array
    rank_T: Int32Array
    top_ids_TX: Int32Array
    top_logprobs_TX: Float32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUpdate:
    """What one step gave one request. The update with a `finish_reason` is its last and comes exactly once.

    `finish_reason`: "" while running, else "stop", "length", "abort" or "error". `stop_token`: the id
    that ended it, or -1. `prompt_logprobs` covers a run of prompt positions starting at
    `prompt_logprobs_start` (position p holds the log-probability of prompt token p; 0 has none).
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    finish_reason: str = ""
    stop_token: int = -1
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: TokenLogprobs | None = None
    prompt_logprobs_start: int = 0
    error: str = ""
    num_cached_tokens: int = 0

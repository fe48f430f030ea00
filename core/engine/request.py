"""A request inside the core: who it is, what it asks, and its tokens while it holds no slot."""

from __future__ import annotations

import numpy as np

from isoinfer.engine.messages import AddRequest, CoreSampling, Int32Array
from isoinfer.kv.prefix_hash import extra_key
from isoinfer.kv.prefix_hit import PrefixHit

NO_SLOT = -1


class Request:
    """One request; only the scheduler changes it. How far it has come is in the SlotTable while it runs.

    `number`: engine-wide and never reused, so it also says who came first. `epoch`: how often it was
    restarted by preemption. `known_L`: its known tokens (prompt, then output) when it last held no slot.
    `limit`: the most tokens it can have. `maybe_hit`: what was last found in the prefix cache while it waits.
    """

    def __init__(self, number: int, message: AddRequest, max_model_len: int) -> None:
        self.number = number
        self.request_id = message.request_id
        self.priority = message.priority
        self.sampling: CoreSampling = message.sampling
        self.known_L: Int32Array = message.prompt_token_ids.astype(np.int32, copy=True)
        self.prompt_len = int(self.known_L.size)
        self.limit = min(max_model_len, self.prompt_len + self.sampling.max_tokens)
        self.cache_key = extra_key(message.cache_salt, None)
        self.num_prompt_logprobs_done = 0
        self.num_cached_tokens = 0
        self.maybe_hit: PrefixHit | None = None
        self.slot = NO_SLOT
        self.epoch = 0
        self.reads_prefix_cache = message.prefix_caching and self.cacheable_L.size > 1

    @property
    def cacheable_L(self) -> Int32Array:
        """Known tokens that need not be computed if they are cached, and the one after them."""
        sampling = self.sampling
        return self.known_L if sampling.num_prompt_logprobs < 0 else self.known_L[: sampling.prompt_logprobs_start]

    def finish_reason(self, token: int, num_tokens: int) -> str:
        """Why the request ends with `token`, its `num_tokens`-th, or "" if it goes on."""
        if num_tokens - self.prompt_len > self.sampling.min_tokens and token in self.sampling.stop_token_ids:
            return "stop"
        return "length" if num_tokens >= self.limit else ""

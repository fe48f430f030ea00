"""A request inside the core: its tokens, how far they are computed, and where its state lives."""

from __future__ import annotations

import numpy as np

from isoinfer.engine.messages import AddRequest, CoreSampling, Int32Array

NO_SLOT = -1


class Request:
    """Mutable state of one request; only the scheduler changes it.

    `number`: engine-wide and never reused. `epoch`: how often it was restarted by preemption. Tokens are
    kept in one int32 array (prompt, then output), so that plans copy slices and nothing else.
    """

    def __init__(self, number: int, message: AddRequest, max_model_len: int) -> None:
        self.number = number
        self.request_id = message.request_id
        self.priority = message.priority
        self.sampling: CoreSampling = message.sampling
        self.prompt_len = int(message.prompt_token_ids.size)
        room = min(max_model_len, self.prompt_len + self.sampling.max_tokens)
        self.tokens_L: Int32Array = np.empty(room, dtype=np.int32)
        self.tokens_L[: self.prompt_len] = message.prompt_token_ids
        self.num_tokens = self.prompt_len
        self.num_computed = 0
        self.num_prompt_logprobs_done = 0
        self.slot = NO_SLOT
        self.epoch = 0

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.prompt_len

    @property
    def num_uncomputed(self) -> int:
        """Known tokens whose KV is not computed yet; 1 while decoding."""
        return self.num_tokens - self.num_computed

    def append(self, token: int) -> None:
        """Add a generated token."""
        self.tokens_L[self.num_tokens] = token
        self.num_tokens += 1

    def restart(self) -> None:
        """Forget all computed KV; the tokens stay and are computed again."""
        self.num_computed = 0
        self.slot = NO_SLOT
        self.epoch += 1

    def finish_reason(self, token: int) -> str:
        """Why the request ends with `token` just appended, or "" if it goes on."""
        if self.num_output > self.sampling.min_tokens and token in self.sampling.stop_token_ids:
            return "stop"
        return "length" if self.num_tokens >= self.tokens_L.size else ""

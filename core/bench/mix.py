"""The requests of a benchmark: random token ids and lengths from a seed, the same on every machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from isoinfer.engine.messages import AddRequest, CoreSampling
from isoinfer.errors import UserError


@dataclass(frozen=True, slots=True)
class Range:
    """Whole numbers from `low` to `high`, both included."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str, option: str) -> Range:
        """`100` or `100-1024`. UserError with an example for anything else."""
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", text)
        if match is None or not 1 <= int(match[1]) <= int(match[2] or match[1]):
            raise UserError(f"{option} {text!r} is no length in tokens; write for example 512 or 100-1024")
        return cls(int(match[1]), int(match[2] or match[1]))

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMix:
    """`num_prompts` requests that all arrive at once. Lengths are uniform; `prefix_len` tokens, the same in all
    prompts, come before each. Every request is answered in full, whatever its tokens are."""

    num_prompts: int
    input_len: Range
    output_len: Range
    prefix_len: int = 0
    seed: int = 0

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and answer together."""
        return self.prefix_len + self.input_len.high + self.output_len.high

    def requests(self, vocab_size: int) -> Iterator[AddRequest]:
        """All of them, greedy."""
        rng = np.random.default_rng(self.seed)
        prefix = rng.integers(0, vocab_size, self.prefix_len)
        for number in range(self.num_prompts):
            num_input, num_output = (
                int(rng.integers(lengths.low, lengths.high + 1)) for lengths in (self.input_len, self.output_len)
            )
            tokens = np.concatenate([prefix, rng.integers(0, vocab_size, num_input)]).astype(np.int32)
            yield AddRequest(
                request_id=f"bench-{number}",
                prompt_token_ids=tokens,
                sampling=CoreSampling(max_tokens=num_output, seed=number, temperature=0.0),
            )

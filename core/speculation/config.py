"""What the user asked for with `--speculative`: who proposes drafts, and how many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from isoinfer.errors import UserError

Method = Literal["ngram", "suffix"]
Accept = Literal["coupled", "rejection"]
DEFAULT_MATCH = {"ngram": (2, 4), "suffix": (2, 32)}
"""Fewest and most tokens of a match."""
LENGTHS = {"ngram": (1, 3), "suffix": (1, 3, 4)}
"""How many numbers may follow the method."""
MAX_DRAFTS, MAX_MATCH = 64, 128
DEVICE_NGRAM = 4
"""Longest match that the device looks for by itself: it reads the whole history once for each token of it."""
EXAMPLES = (
    "write for example ngram:5 (5 drafts), ngram:5:2:4 (after a match of 2 to 4 tokens), "
    "suffix:5, suffix:5:2:32:1 (at most 1 draft for each token of the match), or off"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """`num_drafts` a row and round, after a match of `min_match` to `max_match` tokens.

    method: ngram is the op `propose_ngram` on the device, suffix a `SuffixIndex` of each request on the host.
    `drafts_per_token`: of suffix, the most drafts for each token of the match; 0 for no such limit. `accept`: coupled
    takes a draft where it is the token that is sampled anyway; rejection with the probability that it has.
    """

    method: Method
    num_drafts: int
    min_match: int
    max_match: int
    drafts_per_token: int = 0
    accept: Accept = "coupled"

    def __post_init__(self) -> None:
        if not 1 <= self.num_drafts <= MAX_DRAFTS:
            raise UserError(f"speculative: from 1 to {MAX_DRAFTS} drafts are possible, got {self.num_drafts}")
        if not 1 <= self.min_match <= self.max_match <= MAX_MATCH:
            raise UserError(
                f"speculative: a match has 1 to {MAX_MATCH} tokens and its lower limit comes first, "
                f"got {self.min_match} to {self.max_match}; {EXAMPLES}"
            )

    def describe(self) -> str:
        """A few words for the start-up report."""
        where = "on the device" if self.on_device else "on the host"
        return f"up to {self.num_drafts} drafts by {self.method} {where}, {self.accept} acceptance"

    @property
    def on_device(self) -> bool:
        """Whether drafts are made where the tokens are, not on the host."""
        return self.method == "ngram"

    def keeps_history(self, depth: int) -> bool:
        """Whether token histories are on the device: with tokens in flight, also to propose where the host failed."""
        return self.on_device or depth > 1

    @property
    def max_ngram(self) -> int:
        """The longest match that the device looks for. With suffix it does so where the host's prediction failed."""
        return self.max_match if self.method == "ngram" else max(self.min_match, min(self.max_match, DEVICE_NGRAM))


def parse_speculative(text: str, accept: str = "coupled") -> SpeculativeConfig | None:
    """`method:drafts` or `method:drafts:min:max`, of suffix also `:per_token`; None for `off`. UserError otherwise."""
    if accept not in get_args(Accept):
        raise UserError(f"drafts are accepted by {' or '.join(get_args(Accept))}, not {accept!r}")
    method, *numbers = text.strip().lower().split(":")
    if method == "off" and not numbers:
        return None
    if method not in LENGTHS or len(numbers) not in LENGTHS[method] or not all(map(_is_number, numbers)):
        raise UserError(f"cannot read {text!r} as a way to speculate; {EXAMPLES}")
    num_drafts, *match = map(int, numbers)
    low, high, per_token = (*(match or DEFAULT_MATCH[method]), 0)[:3]
    return SpeculativeConfig(
        method=cast(Method, method),
        num_drafts=num_drafts,
        min_match=low,
        max_match=high,
        drafts_per_token=per_token,
        accept=cast(Accept, accept),
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()

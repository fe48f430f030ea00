"""SamplingParams: what a user may ask about one request, under vLLM's names, checked when it is made.

It knows nothing of a model: checks that need the vocabulary or the context are the input processor's.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Self

from isoinfer.errors import RequestError

MAX_LOGPROBS = 20
# Below this, dividing the logits overflows; it is what other engines treat as greedy.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Number:
    """The values a numeric field may have: `low` (excluded if `low_open`) to `high`, both finite or absent."""

    integer: bool
    low: float | None = None
    high: float | None = None
    low_open: bool = False
    optional: bool = False
    fix: str = ""

    def check(self, name: str, value: object) -> None:
        if value is None and self.optional:
            return
        kind = Integral if self.integer else Real
        if isinstance(value, bool) or not isinstance(value, kind):
            noun = "an integer" if self.integer else "a number"
            raise RequestError(f"{name} must be {noun}, got {value!r} ({type(value).__name__}). {self.fix}".rstrip())
        if not self._inside(value):
            raise RequestError(f"{name} must be {self._range()}, got {value!r}. {self.fix}".rstrip())

    def _inside(self, value: Any) -> bool:
        if not self.integer and not _is_finite(value):
            return False
        above = self.low is None or (value > self.low if self.low_open else value >= self.low)
        return bool(above and (self.high is None or value <= self.high))

    def _range(self) -> str:
        parts = ["finite"] if not self.integer and (self.low is None or self.high is None) else []
        if self.low is not None:
            parts.append(f"{'above' if self.low_open else 'at least'} {self.low}")
        if self.high is not None:
            parts.append(f"at most {self.high}")
        return " and ".join(parts)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int too large for a float
        return False


_LOGPROBS = _Number(
    integer=True, low=0, high=MAX_LOGPROBS, optional=True, fix="Leave it out for none; 0 is only the token's own."
)
_NUMBERS: Mapping[str, _Number] = {
    "n": _Number(integer=True, low=1, fix="Use n=1 for one completion."),
    "temperature": _Number(integer=False, low=0, fix="Use 0 for greedy decoding."),
    "top_p": _Number(integer=False, low=0, low_open=True, high=1, fix="Use 1 to switch it off."),
    "top_k": _Number(integer=True, low=-1, high=2**31 - 1, fix="Use 0 to switch it off."),
    "min_p": _Number(integer=False, low=0, high=1, fix="Use 0 to switch it off."),
    "seed": _Number(integer=True, low=-(2**63), high=2**64 - 1, optional=True, fix="Leave it out for a random one."),
    "max_tokens": _Number(
        integer=True, low=1, optional=True, fix="Leave it out to generate until the context is full."
    ),
    "min_tokens": _Number(integer=True, low=0, fix="Use 0 for no minimum."),
    "presence_penalty": _Number(integer=False, low=-2, high=2, fix="Use 0 to switch it off."),
    "frequency_penalty": _Number(integer=False, low=-2, high=2, fix="Use 0 to switch it off."),
    "repetition_penalty": _Number(integer=False, low=0, low_open=True, high=2, fix="Use 1 to switch it off."),
    "logprobs": _LOGPROBS,
    "prompt_logprobs": _LOGPROBS,
}
_BIAS = _Number(integer=False, low=-100, high=100)
_TOKEN_ID = _Number(integer=True, low=0, fix="Token ids are non-negative integers.")
_FLAGS = (
    "include_stop_str_in_output",
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "skip_reading_prefix_cache",
)
_NULLABLE = frozenset(
    {"seed", "max_tokens", "logprobs", "prompt_logprobs", "stop", "stop_token_ids", "logit_bias"}
    | {"allowed_token_ids", "bad_words"}
)
_FROM_GENERATION_CONFIG = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample one request. Every field has vLLM's meaning; a value that cannot work raises RequestError.

    `top_k` 0 or -1, `top_p` 1, `min_p` 0, the penalties' 0 (`repetition_penalty` 1) switch off.
    `max_tokens` None = until the context is full. `temperature` 0 = greedy. `seed` None = fresh entropy.
    `logprobs`/`prompt_logprobs`: None = none, 0 = only the token's own, k = and the best k.
    `skip_reading_prefix_cache`: compute the whole prompt, whatever of it is cached.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int | str, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    skip_reading_prefix_cache: bool = False

    def __post_init__(self) -> None:
        for name, number in _NUMBERS.items():
            number.check(name, getattr(self, name))
        for name in _FLAGS:
            _check_flag(name, getattr(self, name))
        _check_strings("stop", self.stop_strings, "Leave it out to stop only at the end token.")
        _check_strings("bad_words", self.bad_words, "Leave it out to forbid nothing.")
        _check_ids("stop_token_ids", self.stop_token_ids)
        _check_ids("allowed_token_ids", self.allowed_token_ids)
        _check_bias(self.logit_bias)
        self._check_together()

    def _check_together(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens ({self.min_tokens}) is above max_tokens ({self.max_tokens}). Lower min_tokens or raise "
                "max_tokens."
            )
        if self.stop_strings and not self.detokenize:
            raise RequestError("stop strings need text, but detokenize is False. Use stop_token_ids, or detokenize.")
        if self.n > 1 and self.is_greedy:
            raise RequestError(
                f"n={self.n} greedy completions would all be the same. Use n=1 or a temperature above 0."
            )
        if self.allowed_token_ids is not None and len(self.allowed_token_ids) == 0:
            raise RequestError("allowed_token_ids is empty, so no token could be chosen. Leave it out to allow all.")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whichever form was given."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(_sequence("stop", self.stop))

    @property
    def is_greedy(self) -> bool:
        """Whether the token is always the most likely one."""
        return self.temperature < GREEDY_BELOW

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from a mapping such as a JSON object; a null in a field that cannot be None means its default.

        Raises RequestError for an unknown name (with the nearest known one) and for every invalid value.
        """
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known:
                raise RequestError(_unknown(str(name), known))
        return cls(**{k: v for k, v in values.items() if v is not None or k in _NULLABLE})

    @classmethod
    def from_generation_config(cls, config: Mapping[str, Any]) -> Self:
        """The defaults a checkpoint's generation_config.json recommends; what it does not name stays ours."""
        picked = {k: config[k] for k in _FROM_GENERATION_CONFIG if config.get(k) is not None}
        if config.get("do_sample") is False:
            picked["temperature"] = 0.0
        return cls(**picked)


def _unknown(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known fields: {', '.join(sorted(known))}."
    return f"Unknown sampling field {name!r}. {hint}"


def _sequence(name: str, value: object) -> Sequence[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise RequestError(f"{name} must be a list, got {value!r} ({type(value).__name__}).")
    return value


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be True or False, got {value!r} ({type(value).__name__}).")


def _check_strings(name: str, values: object, fix: str) -> None:
    for value in () if values is None else _sequence(name, values):
        if not isinstance(value, str):
            raise RequestError(f"{name} must hold strings, got {value!r} ({type(value).__name__}).")
        if not value.strip() if name == "bad_words" else not value:
            raise RequestError(f"{name} holds an empty string, which would match everywhere. {fix}")


def _check_ids(name: str, values: object) -> None:
    for value in () if values is None else _sequence(name, values):
        _TOKEN_ID.check(f"each of {name}", value)


def _check_bias(bias: object) -> None:
    if bias is None:
        return
    if not isinstance(bias, Mapping):
        raise RequestError(f"logit_bias must map token ids to numbers, got {bias!r} ({type(bias).__name__}).")
    for key, value in bias.items():
        _BIAS.check(f"logit_bias[{key!r}]", value)

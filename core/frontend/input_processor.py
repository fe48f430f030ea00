"""Turns a prompt and SamplingParams into the core's messages, and refuses what can never work.

Everything random or textual is resolved here: the core sees only token ids and a 64-bit seed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from isoinfer.engine.messages import GREEDY_SEED, AddRequest, CoreSampling, Int32Array
from isoinfer.errors import RequestError
from isoinfer.sampling_params import SamplingParams

MASK_64 = 2**64 - 1
MAX_NAMED = 8


class TextEncoder(Protocol):
    """The part of a tokenizer that prompts need."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


class InputProcessor:
    """Makes AddRequest messages for one model. Without a tokenizer it takes only token ids."""

    def __init__(
        self,
        tokenizer: TextEncoder | None,
        *,
        vocab_size: int,
        max_model_len: int,
        eos_token_ids: Iterable[int] = (),
        default_params: SamplingParams | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._eos_token_ids = tuple(eos_token_ids)
        self._default_params = default_params or SamplingParams()

    @property
    def default_params(self) -> SamplingParams:
        """What a request without params gets."""
        return self._default_params

    def process(
        self,
        request_id: str,
        prompt: str | Sequence[int] | Int32Array,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        add_special_tokens: bool = True,
    ) -> list[AddRequest]:
        """One message per completion: `request_id` itself, or `request_id/i` where params.n is above 1.

        `add_special_tokens` is for text only; a chat template has already put them in. The completion's
        `max_tokens` is clipped to the context. Only the first of n asks for prompt log-probabilities.
        Raises RequestError for an empty prompt, one that does not fit the context, and invalid ids.
        """
        params = params or self._default_params
        if self._tokenizer is None and params.stop_strings:
            raise RequestError("This model has no tokenizer, so stop strings cannot be found. Use stop_token_ids.")
        prompt_token_ids = self._prompt_ids(prompt, add_special_tokens)
        shared = self._sampling_fields(params, prompt_token_ids.size)
        return [
            AddRequest(
                request_id=child_id,
                prompt_token_ids=prompt_token_ids,
                sampling=CoreSampling(seed=seed, num_prompt_logprobs=_count(params.prompt_logprobs, i), **shared),
                priority=priority,
                cache_salt=cache_salt,
                prefix_caching=not params.skip_reading_prefix_cache,
            )
            for i, (child_id, seed) in enumerate(zip(_child_ids(request_id, params.n), _seeds(params), strict=True))
        ]

    def _prompt_ids(self, prompt: object, add_special_tokens: bool) -> Int32Array:
        if isinstance(prompt, str):
            ids = self._encode(prompt, add_special_tokens) if prompt else []
        else:
            ids = _as_ids(prompt)
        array = np.asarray(ids)
        if array.size == 0:
            raise RequestError("The prompt is empty. Give at least one token of text.")
        _check_in_vocabulary("The prompt", array, self._vocab_size)
        if array.size >= self._max_model_len:
            raise RequestError(
                f"The prompt has {array.size} tokens, but the context (max_model_len) is {self._max_model_len} tokens "
                f"and at least one is needed for the answer. Shorten the prompt to {self._max_model_len - 1} tokens or "
                "raise max_model_len."
            )
        return array.astype(np.int32)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if self._tokenizer is None:
            raise RequestError("This model has no tokenizer, so text cannot be used. Give token ids.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"The text is not valid Unicode: character {error.start} is a lone surrogate, which is also what bytes "
                "that are not UTF-8 become. Remove or re-encode it."
            ) from None
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _sampling_fields(self, params: SamplingParams, prompt_len: int) -> dict[str, Any]:
        room = self._max_model_len - prompt_len
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        bias = self._bias(params)
        return {
            "max_tokens": max_tokens,
            "min_tokens": min(params.min_tokens, max_tokens),
            "temperature": 0.0 if params.is_greedy else float(params.temperature),
            "top_k": max(int(params.top_k), 0),
            "top_p": float(params.top_p),
            "min_p": float(params.min_p),
            "stop_token_ids": self._stop_ids(params),
            "presence_penalty": float(params.presence_penalty),
            "frequency_penalty": float(params.frequency_penalty),
            "repetition_penalty": float(params.repetition_penalty),
            "bias_token_ids": tuple(bias),
            "bias_values": tuple(bias.values()),
            "allowed_token_ids": self._known_ids("allowed_token_ids", params.allowed_token_ids),
            "bad_words": self._bad_words(params.bad_words or ()),
            "num_logprobs": _count(params.logprobs),
        }

    def _stop_ids(self, params: SamplingParams) -> tuple[int, ...]:
        own = self._known_ids("stop_token_ids", params.stop_token_ids)
        return own if params.ignore_eos else tuple(dict.fromkeys((*own, *self._eos_token_ids)))

    def _known_ids(self, name: str, ids: Sequence[int] | None) -> tuple[int, ...]:
        if not ids:
            return ()
        unique = tuple(dict.fromkeys(int(token) for token in ids))
        _check_in_vocabulary(name, np.asarray(unique), self._vocab_size)
        return unique

    def _bias(self, params: SamplingParams) -> dict[int, float]:
        bias, invalid = {}, []
        for key, value in (params.logit_bias or {}).items():
            token = _token_id(key)
            if token is None or not 0 <= token < self._vocab_size:
                invalid.append(key)
            else:
                bias[token] = float(value)
        if invalid:
            raise RequestError(
                f"logit_bias has keys that are no token ids of this model: {', '.join(map(repr, invalid))}. "
                f"Use integers from 0 to {self._vocab_size - 1}."
            )
        return bias

    def _bad_words(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Each word as it begins a text and as it follows a space: these are different tokens."""
        if not words:
            return ()
        texts = [text for word in words for text in (word.lstrip(), " " + word.lstrip())]
        sequences = (tuple(self._encode(text, add_special_tokens=False)) for text in texts)
        return tuple(dict.fromkeys(sequence for sequence in sequences if sequence))


def _check_in_vocabulary(what: str, ids: Any, vocab_size: int) -> None:
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.size:
        named = ", ".join(str(token) for token in wrong[:MAX_NAMED]) + (", ..." if wrong.size > MAX_NAMED else "")
        raise RequestError(
            f"{what} has {wrong.size} token ids that this model does not have: {named}. Use ids from 0 to "
            f"{vocab_size - 1}."
        )


def _as_ids(prompt: object) -> Any:
    """A one-dimensional integer array, or an empty one."""
    try:
        ids = np.asarray(prompt)
    except ValueError:  # ragged
        ids = np.asarray(None)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise RequestError(f"A prompt must be text or a list of token ids, got {str(prompt)[:80]!r}.")
    return ids


def _token_id(key: object) -> int | None:
    try:
        return int(key) if isinstance(key, int | str) and not isinstance(key, bool) else None
    except ValueError:
        return None


def _count(num_logprobs: int | None, child: int = 0) -> int:
    return -1 if num_logprobs is None or child > 0 else int(num_logprobs)


def _child_ids(request_id: str, n: int) -> list[str]:
    return [request_id] if n == 1 else [f"{request_id}/{i}" for i in range(n)]


def _seeds(params: SamplingParams) -> list[int]:
    """One seed per completion: the given one itself for n = 1, else splitmix64(seed, i) for completion i."""
    if params.is_greedy and params.seed is None:
        return [GREEDY_SEED] * params.n
    seed = secrets.randbits(64) if params.seed is None else int(params.seed)
    if params.n == 1:
        return [_signed(seed)]
    return [_signed(splitmix64(seed, i)) for i in range(params.n)]


def splitmix64(seed: int, index: int) -> int:
    """Output number `index` (from 0) of the SplitMix64 generator: unsigned 64 bits, all distinct per seed."""
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & MASK_64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK_64
    return z ^ (z >> 31)


def _signed(value: int) -> int:
    """The same 64 bits as a signed integer, which int64 arrays can hold."""
    value &= MASK_64
    return value - 2**64 if value >= 2**63 else value

"""Sampling settings by slot, so that a step's SamplePlan is a few array look-ups.

Rows with rare settings (penalties, biases, bans, masks) are handled one by one; all others never touch
a Python object. Suffixes: S slots, G sampling rows, M sparse entries, W mask words, L history length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from isoinfer.engine.messages import CoreSampling, Float32Array, Int32Array
from isoinfer.engine.plan import SamplePlan
from isoinfer.engine.request import Request

BANNED = float("-inf")


class SamplingTable:
    """The constant settings of every running request."""

    def __init__(self, *, num_slots: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._temperature_S = np.zeros(num_slots, dtype=np.float32)
        self._top_k_S = np.zeros(num_slots, dtype=np.int32)
        self._top_p_S = np.ones(num_slots, dtype=np.float32)
        self._min_p_S = np.zeros(num_slots, dtype=np.float32)
        self._seed_S = np.zeros(num_slots, dtype=np.int64)
        self._logprobs_S = np.full(num_slots, -1, dtype=np.int32)
        self._masks: dict[int, Int32Array] = {}
        self._special: set[int] = set()

    def add(self, slot: int, sampling: CoreSampling) -> None:
        """Note the settings of the request that takes `slot`."""
        self._temperature_S[slot] = sampling.temperature
        self._top_k_S[slot] = sampling.top_k
        self._top_p_S[slot] = sampling.top_p
        self._min_p_S[slot] = sampling.min_p
        self._seed_S[slot] = sampling.seed
        self._logprobs_S[slot] = sampling.num_logprobs
        self._special.discard(slot)
        self._masks.pop(slot, None)
        if sampling.allowed_token_ids:
            self._masks[slot] = _bit_mask(sampling.allowed_token_ids, self._vocab_size)
        if sampling.has_penalties or sampling.bias_token_ids or sampling.bad_words or sampling.min_tokens:
            self._special.add(slot)

    def plan(self, step_id: int, requests: Sequence[Request]) -> SamplePlan:
        """The sampling part of a step for the requests that sample, in row order."""
        slots_G = np.fromiter((request.slot for request in requests), dtype=np.int32, count=len(requests))
        position_G = np.fromiter((request.num_tokens for request in requests), dtype=np.int32, count=len(requests))
        special = [request if request.slot in self._special else None for request in requests]
        penalized = any(request is not None and request.sampling.has_penalties for request in special)
        row_M, token_M, value_M = _bias_entries(special)
        return SamplePlan(
            step_id=step_id,
            temperature_G=self._temperature_S[slots_G],
            top_k_G=self._top_k_S[slots_G],
            top_p_G=self._top_p_S[slots_G],
            min_p_G=self._min_p_S[slots_G],
            seed_G=self._seed_S[slots_G],
            position_G=position_G,
            history_GL=_histories(requests if penalized else ()),
            prompt_len_G=np.array([request.prompt_len for request in requests], dtype=np.int32),
            length_G=position_G,
            presence_G=_column(special, "presence_penalty", 0.0),
            frequency_G=_column(special, "frequency_penalty", 0.0),
            repetition_G=_column(special, "repetition_penalty", 1.0),
            bias_row_M=row_M,
            bias_token_M=token_M,
            bias_value_M=value_M,
            mask_GW=self._mask_rows(slots_G),
            num_logprobs=int(self._logprobs_S[slots_G].max(initial=-1)),
        )

    def _mask_rows(self, slots_G: Int32Array) -> Int32Array:
        slots = slots_G.tolist()
        if not any(slot in self._masks for slot in slots):
            return np.zeros((len(slots), 0), dtype=np.int32)
        everything = np.full(-(-self._vocab_size // 32), -1, dtype=np.int32)
        return np.stack([self._masks.get(slot, everything) for slot in slots])


def _bit_mask(token_ids: Sequence[int], vocab_size: int) -> Int32Array:
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)


def _column(special: Sequence[Request | None], name: str, default: float) -> Float32Array:
    values = (default if request is None else getattr(request.sampling, name) for request in special)
    return np.fromiter(values, dtype=np.float32, count=len(special))


def _histories(requests: Sequence[Request]) -> Int32Array:
    """All tokens of each request, padded with 0 to the longest."""
    width = max((request.num_tokens for request in requests), default=0)
    history_GL = np.zeros((len(requests), width), dtype=np.int32)
    for row, request in enumerate(requests):
        history_GL[row, : request.num_tokens] = request.tokens_L[: request.num_tokens]
    return history_GL


def _bias_entries(special: Sequence[Request | None]) -> tuple[Int32Array, Int32Array, Float32Array]:
    entries = [
        (row, token, value)
        for row, request in enumerate(special)
        if request is not None
        for token, value in _biases(request)
    ]
    rows, tokens, values = zip(*entries, strict=True) if entries else ((), (), ())
    return np.array(rows, np.int32), np.array(tokens, np.int32), np.array(values, np.float32)


def _biases(request: Request) -> Iterator[tuple[int, float]]:
    """Token biases that hold for the next token of `request`: its own, and bans."""
    sampling = request.sampling
    yield from zip(sampling.bias_token_ids, sampling.bias_values, strict=True)
    if request.num_output < sampling.min_tokens:
        yield from ((token, BANNED) for token in sampling.stop_token_ids)
    for word in sampling.bad_words:
        if _ends_with(request, word[:-1]):
            yield word[-1], BANNED


def _ends_with(request: Request, tail: Sequence[int]) -> bool:
    """Whether the output so far ends with `tail`; a word is banned only as a whole within the output."""
    size = len(tail)
    if size > request.num_output:
        return False
    end = request.num_tokens
    written: list[int] = request.tokens_L[end - size : end].tolist()
    return written == list(tail)

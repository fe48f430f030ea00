"""Sampling settings by slot, so that a step's SamplePlan is a few array look-ups.

Rows with rare settings (penalties, biases, bans, masks) are handled one by one; all others never touch
a Python object. Suffixes: S slots, G sampling rows, P places, M sparse entries, W mask words, L history length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from isoinfer.engine.messages import CoreSampling, Float32Array, Int32Array
from isoinfer.engine.plan import SamplePlan
from isoinfer.engine.request import Request
from isoinfer.engine.slot_table import SlotTable

BANNED = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place with rare settings: number `index` of the step, after the `length` tokens of `tokens_L`."""

    index: int
    request: Request
    tokens_L: Int32Array
    length: int

    @property
    def sampling(self) -> CoreSampling:
        """What the request asks for."""
        return self.request.sampling

    @property
    def num_output(self) -> int:
        """Output tokens before this place, drafts included."""
        return self.length - self.request.prompt_len


class SamplingTable:
    """The constant settings of every running request. `is_special_S`: which slots have rare ones."""

    def __init__(self, *, num_slots: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._temperature_S = np.zeros(num_slots, dtype=np.float32)
        self._top_k_S = np.zeros(num_slots, dtype=np.int32)
        self._top_p_S = np.ones(num_slots, dtype=np.float32)
        self._min_p_S = np.zeros(num_slots, dtype=np.float32)
        self._seed_S = np.zeros(num_slots, dtype=np.int64)
        self._logprobs_S = np.full(num_slots, -1, dtype=np.int32)
        self._prompt_len_S = np.zeros(num_slots, dtype=np.int32)
        self.is_special_S = np.zeros(num_slots, dtype=np.bool_)
        self._is_masked_S = np.zeros(num_slots, dtype=np.bool_)
        self._masks: dict[int, Int32Array] = {}

    def add(self, slot: int, request: Request) -> None:
        """Note the settings of the request that takes `slot`."""
        sampling = request.sampling
        self._temperature_S[slot] = sampling.temperature
        self._top_k_S[slot] = sampling.top_k
        self._top_p_S[slot] = sampling.top_p
        self._min_p_S[slot] = sampling.min_p
        self._seed_S[slot] = sampling.seed
        self._logprobs_S[slot] = sampling.num_logprobs
        self._prompt_len_S[slot] = request.prompt_len
        self.is_special_S[slot] = bool(
            sampling.has_penalties or sampling.bias_token_ids or sampling.bad_words or sampling.min_tokens
        )
        self._is_masked_S[slot] = bool(sampling.allowed_token_ids)
        self._masks.pop(slot, None)
        if sampling.allowed_token_ids:
            self._masks[slot] = _bit_mask(sampling.allowed_token_ids, self._vocab_size)

    def plan(self, step_id: int, table: SlotTable, slots_G: Int32Array, drafts_G: Int32Array) -> SamplePlan:
        """The sampling part of a step for the rows that sample, in row order, `drafts_G` drafts each."""
        places_G: Int32Array = drafts_G + 1
        slots_P, position_P = slots_G, table.known_S[slots_G]
        if drafts_G.any():
            slots_P = np.repeat(slots_G, places_G)
            ahead_P = np.arange(slots_P.size, dtype=np.int32) - np.repeat(np.cumsum(places_G) - places_G, places_G)
            position_P = (table.known_S[slots_P] + ahead_P).astype(np.int32)
        special = self._places(table, slots_P, position_P) if self.is_special_S[slots_P].any() else []
        penalized = [place for place in special if place.sampling.has_penalties]
        row_M, token_M, value_M = _bias_entries(special)
        return SamplePlan(
            step_id=step_id,
            places_G=places_G,
            temperature_P=self._temperature_S[slots_P],
            top_k_P=self._top_k_S[slots_P],
            top_p_P=self._top_p_S[slots_P],
            min_p_P=self._min_p_S[slots_P],
            seed_P=self._seed_S[slots_P],
            position_P=position_P,
            history_PL=_histories(penalized, slots_P.size),
            prompt_len_P=self._prompt_len_S[slots_P],
            length_P=_lengths(penalized, slots_P.size),
            presence_P=_column(penalized, slots_P.size, "presence_penalty", 0.0),
            frequency_P=_column(penalized, slots_P.size, "frequency_penalty", 0.0),
            repetition_P=_column(penalized, slots_P.size, "repetition_penalty", 1.0),
            bias_row_M=row_M,
            bias_token_M=token_M,
            bias_value_M=value_M,
            mask_PW=self._mask_rows(slots_P),
            num_logprobs=int(self._logprobs_S[slots_P].max(initial=-1)),
        )

    def _places(self, table: SlotTable, slots_P: Int32Array, position_P: Int32Array) -> list[Place]:
        """Those that need a look of their own. Their drafts stand in the table after the known tokens meanwhile."""
        places = []
        for index in np.flatnonzero(self.is_special_S[slots_P]).tolist():
            slot, length = int(slots_P[index]), int(position_P[index])
            request, known = table.requests[slot], int(table.known_S[slot])
            if length > known:
                table.tokens_SL[slot, length - 1] = table.drafts_SK[slot, length - 1 - known]
            if request is not None:  # else it was ended after the step was submitted; its row is wasted
                places.append(Place(index=index, request=request, tokens_L=table.tokens_SL[slot], length=length))
        return places

    def _mask_rows(self, slots_P: Int32Array) -> Int32Array:
        if not self._is_masked_S[slots_P].any():
            return np.zeros((slots_P.size, 0), dtype=np.int32)
        everything = np.full(-(-self._vocab_size // 32), -1, dtype=np.int32)
        return np.stack([self._masks.get(slot, everything) for slot in slots_P.tolist()])


def _bit_mask(token_ids: Sequence[int], vocab_size: int) -> Int32Array:
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)


def _column(places: Sequence[Place], size: int, name: str, default: float) -> Float32Array:
    values_P = np.full(size, default, dtype=np.float32)
    for place in places:
        values_P[place.index] = getattr(place.sampling, name)
    return values_P


def _histories(places: Sequence[Place], size: int) -> Int32Array:
    """All tokens before each place that is penalised, padded with 0 to the longest; width 0 if none is."""
    width = max((place.length for place in places), default=0)
    history_PL = np.zeros((size if width else 0, width), dtype=np.int32)
    for place in places:
        history_PL[place.index, : place.length] = place.tokens_L[: place.length]
    return history_PL


def _lengths(places: Sequence[Place], size: int) -> Int32Array:
    """How far each penalised place's history goes, 0 for the others: nobody may read past its width."""
    length_P = np.zeros(size, dtype=np.int32)
    for place in places:
        length_P[place.index] = place.length
    return length_P


def _bias_entries(places: Sequence[Place]) -> tuple[Int32Array, Int32Array, Float32Array]:
    entries = [(place.index, token, value) for place in places for token, value in _biases(place)]
    rows, tokens, values = zip(*entries, strict=True) if entries else ((), (), ())
    return np.array(rows, np.int32), np.array(tokens, np.int32), np.array(values, np.float32)


def _biases(place: Place) -> Iterator[tuple[int, float]]:
    """Token biases that hold for the next token: the request's own, and bans."""
    sampling = place.sampling
    yield from zip(sampling.bias_token_ids, sampling.bias_values, strict=True)
    if place.num_output < sampling.min_tokens:
        yield from ((token, BANNED) for token in sampling.stop_token_ids)
    for word in sampling.bad_words:
        if _ends_with(place, word[:-1]):
            yield word[-1], BANNED


def _ends_with(place: Place, tail: Sequence[int]) -> bool:
    """Whether the output so far ends with `tail`; a word is banned only as a whole within the output."""
    size = len(tail)
    if size > place.num_output:
        return False
    written: list[int] = place.tokens_L[place.length - size : place.length].tolist()
    return written == list(tail)

"""The simulated model: writes a word for each token and answers with a hash of all words that attention reads.

Any mix-up of block, slot, row, position or length changes the answer, or is a CanaryError. Groups are chained:
what a later group writes depends on what the earlier ones read. Suffixes: T new tokens, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from isoinfer.backends.interface import KVCache, KVSpec, ModelSpec, RingBatch
from isoinfer.backends.sim.faults import Fault
from isoinfer.backends.sim.fingerprint import UInt64Array, mix, multipliers, tokens, words
from isoinfer.backends.sim.kv import SimAttentionPlan, SimKVCache, own
from isoinfer.backends.sim.paged_reading import paged_reading
from isoinfer.backends.sim.reading import CanaryError, Reading
from isoinfer.backends.sim.ring_reading import ring_reading

if TYPE_CHECKING:
    from isoinfer.backends.sim.device import SimDevice
    from isoinfer.backends.sim.options import SimOptions
    from isoinfer.layers.batch import ForwardBatch, GroupInputs

MARGIN = 4096
"""Positions past the longest sequence that drafts in flight may reach."""
CANDIDATE_LOGITS = np.array([8.0, 8.5, 9.0, 10.0], dtype=np.float32)
"""Of the tokens that a hash makes likely; the last is the greedy choice. All others have 0."""
CONTEXT, CLASSES = 2, np.uint64(6)
"""A predictable text goes on from so many last tokens, each told apart only by its remainder: it soon repeats."""
_STEP, _GROUP, _EOS, _JUMP = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xA0761D65, 0xE7037ED1))


class FingerprintForward:
    """`bind_model`'s answer. `hidden` is `[T, 1]` int64, the hash itself; nobody but `logits` looks into it."""

    def __init__(self, spec: ModelSpec, options: SimOptions, device: SimDevice) -> None:
        self._spec, self._options, self._device = spec, options, device
        self._multipliers = multipliers(spec.max_position + MARGIN)
        self._salts = mix(np.arange(1, 1 + options.layers * len(spec.kv_specs), dtype=np.uint64) * _GROUP)

    def hidden(self, batch: ForwardBatch, kv: KVCache) -> torch.Tensor:
        """Write the new tokens' words, read what each may see, and take the step's time on the device."""
        cache, device = own(kv), self._device
        fault = device.begin_forward()
        readings = self._readings(batch)
        if fault is Fault.RUBBISH:
            self._spoil(readings, batch.num_tokens, cache)
            device.fail(fault)
        device.spend(self._spec, readings)
        token_T = self._tokens(batch.token_ids_T)
        position_T = batch.positions_T.numpy().astype(np.uint64)
        hash_T = np.zeros(batch.num_tokens, dtype=np.uint64)
        local_T = hash_T
        salts = iter(self._salts)
        for layer in range(self._options.layers):
            for group, reading in enumerate(readings):
                word_T = words(token_T, position_T, hash_T ^ next(salts))
                words_F = reading.exchange(cache.groups[group].words_LBS[layer], word_T)
                hash_T = mix(hash_T * _STEP + reading.sums(words_F))
                if layer == group == 0 and self._options.predictable:
                    local_T = _local(words_F, reading)
        if fault is Fault.AFTER:
            device.fail(fault)
        answer_T = self._predictable(hash_T, local_T) if self._options.predictable else hash_T
        return torch.from_numpy(answer_T.view(np.int64)[:, None])

    def logits(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        """A few likely tokens for each hash, one of them the clear best."""
        hash_R = hidden_RH.numpy()[:, 0].view(np.uint64)
        num_rows, num_likely = hash_R.size, CANDIDATE_LOGITS.size
        token_RX = mix(hash_R[:, None] + np.arange(1, num_likely + 1, dtype=np.uint64) * _STEP)
        token_RX = (token_RX % np.uint64(self._spec.vocab_size)).astype(np.int64)
        if self._options.eos_every:
            is_end_R = mix(hash_R ^ _EOS) % np.uint64(self._options.eos_every) == 0
            token_RX[is_end_R, -1] = self._options.eos_token
        logits_RV = np.zeros((num_rows, self._spec.vocab_size), dtype=np.float32)
        row_R = np.arange(num_rows)
        for place, value in enumerate(CANDIDATE_LOGITS):  # where two are the same token, the likelier one stays
            logits_RV[row_R, token_RX[:, place]] = value
        return torch.from_numpy(logits_RV)

    def _readings(self, batch: ForwardBatch) -> list[Reading]:
        return [
            self._reading(inputs, spec, batch.num_tokens)
            for inputs, spec in zip(batch.groups, self._spec.kv_specs, strict=True)
        ]

    def _reading(self, inputs: GroupInputs, spec: KVSpec, num_tokens: int) -> Reading:
        if spec.ring is not None:
            assert isinstance(inputs.plan, RingBatch), type(inputs.plan)
            assert spec.window is not None
            return ring_reading(
                inputs.plan, num_tokens, window=spec.window, ring=spec.ring, multipliers=self._multipliers
            )
        assert isinstance(inputs.plan, SimAttentionPlan), type(inputs.plan)
        return paged_reading(
            inputs.plan,
            inputs.slots_T,
            window=spec.window,
            block_size=self._options.block_size,
            multipliers=self._multipliers,
        )

    def _tokens(self, token_ids_T: torch.Tensor) -> UInt64Array:
        token_T = token_ids_T.numpy().astype(np.uint64)  # a negative id becomes a very large one
        if token_T.size and int(token_T.max()) >= self._spec.vocab_size:
            token = int(token_T.argmax())
            raise CanaryError(f"new token {token} is {int(token_ids_T[token])}, which is not in the vocabulary")
        return token_T

    def _spoil(self, readings: Sequence[Reading], num_tokens: int, cache: SimKVCache) -> None:
        """Written, but with nothing sensible: rows of these requests in steps behind this one may read it."""
        for reading, group in zip(readings, cache.groups, strict=True):
            for words_BS in group.words_LBS:
                reading.exchange(words_BS, multipliers(num_tokens))

    def _predictable(self, hash_T: UInt64Array, local_T: UInt64Array) -> UInt64Array:
        """Mostly what follows from the last tokens; now and then, by the whole history, something new."""
        jumps_T = mix(hash_T ^ _JUMP) % np.uint64(self._options.predictable) == 0
        return np.where(jumps_T, hash_T, local_T)


def _local(words_F: UInt64Array, reading: Reading) -> UInt64Array:
    """A hash of the last tokens that each new token sees, itself included."""
    token_F = tokens(words_F) % CLASSES
    local_T = np.zeros(reading.last_T.size, dtype=np.uint64)
    for back in range(CONTEXT):
        place_T = reading.last_T - back
        token_T = np.where(place_T >= reading.lower_T, token_F[np.maximum(place_T, 0)], np.uint64(0))
        local_T = mix(local_T * _STEP + token_T + _GROUP)
    return local_T

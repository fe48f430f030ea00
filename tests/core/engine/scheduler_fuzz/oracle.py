"""What a request says when it is alone, checked by one forward over all that it said: no step, no cache, no schedule.

If every token is the one that follows from the true history before it, the whole is what the request says alone.
Suffixes: L tokens of a request, P places whose token is checked, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from isoinfer.backends.descriptor import BackendConfig, DeviceInfo
from isoinfer.backends.interface import AttentionBatch, ModelSpec
from isoinfer.backends.sim.backend import SimBackend
from isoinfer.engine.messages import CoreSampling
from isoinfer.engine.plan import SamplePlan
from isoinfer.engine.sampler import Sampled, Sampler
from isoinfer.layers.batch import ForwardBatch, GroupInputs

BLOCK_SIZE = 256


def sim_backend(**options: Any) -> SimBackend:
    """A simulated device with these options."""
    texts = {name: str(value) for name, value in options.items()}
    return SimBackend(DeviceInfo(id="0", description="simulated", score=-1), BackendConfig(options=texts))


class Oracle:
    """The model `spec` on a device of its own, which has the `options` that decide what it says."""

    def __init__(self, spec: ModelSpec, **options: Any) -> None:
        self._backend = sim_backend(stream="eager", block_size=BLOCK_SIZE, host_us=0, **options)
        self._vocab_size = spec.vocab_size
        self._num_groups = len(spec.kv_specs)
        self._num_blocks = 1 + -(-spec.max_position // BLOCK_SIZE)
        self._kv = self._backend.allocate_kv(spec.kv_specs, [self._num_blocks] * self._num_groups)
        self._forward = self._backend.bind_model(spec)
        self._stream = self._backend.stream()
        self._sampler = Sampler(self._backend, self._backend.bind, spec.vocab_size)
        self._hidden: tuple[tuple[int, ...], Any] = ((), None)

    def tokens(self, history: Sequence[int], prompt_len: int, sampling: CoreSampling) -> tuple[list[int], list[float]]:
        """What follows each of `history[:prompt_len]`, `history[:prompt_len + 1]`, ... before the last, as `sampling`
        has it, and its log-probability."""
        logits_PV = self._logits(history)[prompt_len - 1 : len(history) - 1]
        plan, sampled = self._plan(history, prompt_len, sampling), Sampled()
        token_P = self._sampler.run(logits_PV, plan, self._sampler.place(plan, self._stream), sampled)
        assert sampled.logprobs is not None
        return token_P.tolist(), sampled.logprobs[0].tolist()

    def prompt_logprobs(self, prompt: Sequence[int]) -> list[float]:
        """The log-probability of each prompt token but the first."""
        logits_PV = self._logits(prompt)[: len(prompt) - 1]
        logprob_P: torch.Tensor = self._sampler.logprobs(logits_PV, torch.tensor(prompt[1:], dtype=torch.int32), 0)[0]
        return logprob_P.tolist()

    def _logits(self, history: Sequence[int]) -> torch.Tensor:
        """Of every token."""
        count = len(history)
        token_L, position_L = _ints(history), torch.arange(count, dtype=torch.int32)
        attention = AttentionBatch(
            query_len_R=np.array([count], dtype=np.int32),
            kv_len_upper_R=np.array([count], dtype=np.int32),
            kv_len_device_R=_ints([count]),
            block_table_RB=_ints([range(1, self._num_blocks)]),
            block_size=BLOCK_SIZE,
            maybe_kv_len_host_R=np.array([count], dtype=np.int32),
        )
        inputs = GroupInputs(
            slots_T=position_L + BLOCK_SIZE, plan=self._backend.plan_attention(attention, self._stream)
        )
        batch = ForwardBatch(
            token_ids_T=token_L, positions_T=position_L, groups=(inputs,) * self._num_groups, num_tokens=count
        )
        return self._forward.logits(self._forward.hidden(batch, self._kv))

    def _plan(self, history: Sequence[int], prompt_len: int, sampling: CoreSampling) -> SamplePlan:
        lengths = range(prompt_len, len(history))
        count = len(lengths)
        biases = [(p, *bias) for p, n in enumerate(lengths) for bias in _biases(history[prompt_len:n], sampling)]
        row, token, value = zip(*biases, strict=True) if biases else ((), (), ())
        width = len(history) if sampling.has_penalties else 0
        return SamplePlan(
            step_id=0,
            places_G=np.ones(count, dtype=np.int32),
            temperature_P=np.full(count, sampling.temperature, dtype=np.float32),
            top_k_P=np.full(count, sampling.top_k, dtype=np.int32),
            top_p_P=np.full(count, sampling.top_p, dtype=np.float32),
            min_p_P=np.full(count, sampling.min_p, dtype=np.float32),
            seed_P=np.full(count, sampling.seed, dtype=np.int64),
            position_P=np.array(lengths, dtype=np.int32),
            history_PL=np.tile(np.array(history, dtype=np.int32)[:width], (count, 1)),
            prompt_len_P=np.full(count, prompt_len, dtype=np.int32),
            length_P=np.array(lengths, dtype=np.int32),
            presence_P=np.full(count, sampling.presence_penalty, dtype=np.float32),
            frequency_P=np.full(count, sampling.frequency_penalty, dtype=np.float32),
            repetition_P=np.full(count, sampling.repetition_penalty, dtype=np.float32),
            bias_row_M=np.array(row, dtype=np.int32),
            bias_token_M=np.array(token, dtype=np.int32),
            bias_value_M=np.array(value, dtype=np.float32),
            mask_PW=self._mask(count, sampling),
            num_logprobs=0,
        )

    def _mask(self, count: int, sampling: CoreSampling) -> Any:
        if not sampling.allowed_token_ids:
            return np.zeros((count, 0), dtype=np.int32)
        words = np.zeros(-(-self._vocab_size // 32), dtype=np.uint32)
        for token in sampling.allowed_token_ids:
            words[token // 32] |= np.uint32(1 << token % 32)
        return np.tile(words.view(np.int32), (count, 1))


def _biases(output: Sequence[int], sampling: CoreSampling) -> list[tuple[int, float]]:
    """The biases on what follows `output`."""
    banned = list(sampling.stop_token_ids) if len(output) < sampling.min_tokens else []
    banned += [
        word[-1] for word in sampling.bad_words if tuple(output[max(0, len(output) - len(word) + 1) :]) == word[:-1]
    ]
    own = zip(sampling.bias_token_ids, sampling.bias_values, strict=True)
    return [*own, *((token, -np.inf) for token in banned)]


def _ints(values: Any) -> torch.Tensor:
    return torch.tensor([list(v) if isinstance(v, range) else v for v in values], dtype=torch.int32)

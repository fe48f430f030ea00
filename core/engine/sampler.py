"""The sampling half of a step on the device: biases, masks, penalties, the choice, log-probabilities.

Every computation is a bound op; which ones run is decided on the host from the SamplePlan alone.
Suffixes: P places whose logits are sampled, V vocabulary, Q prompt places, X best tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from isoinfer.backends.ops import (
    ARGMAX,
    BIAS_LOGITS,
    LOGPROBS,
    MASK_LOGITS,
    PENALIZE,
    SAMPLE,
    LogitsSpec,
    LogprobsSpec,
)
from isoinfer.engine.messages import TokenLogprobs
from isoinfer.engine.plan import SamplePlan

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend, Stream
    from isoinfer.layers.parts import Bind

LogprobTensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
CHOICE = ("temperature_P", "top_k_P", "top_p_P", "min_p_P", "seed_P", "position_P")
PENALTIES = ("prompt_len_P", "length_P", "presence_P", "frequency_P", "repetition_P")
BIASES = ("bias_row_M", "bias_token_M", "bias_value_M")
"""Fields of a SamplePlan in the order in which sample, penalize and bias_logits take them."""
PLACES_AT_ONCE = 256
"""Prompt places whose logits exist at the same time: bounds memory at 256 vocabularies."""


@dataclass(slots=True)
class Sampled:
    """Log-probabilities of one step on the device; filled by the launched work, read after its event."""

    logprobs: LogprobTensors | None = None
    prompt_logprobs: list[LogprobTensors] | None = None


class Sampler:
    """Bound sampling ops for one vocabulary."""

    def __init__(self, backend: Backend, bind: Bind, vocab_size: int) -> None:
        self._backend, self._bind = backend, bind
        self._vocab_size = vocab_size
        static = LogitsSpec(vocab_size=vocab_size)
        self._argmax = bind(ARGMAX, static)
        self._sample = bind(SAMPLE, static)
        self._penalize = bind(PENALIZE, static)
        self._add_biases = bind(BIAS_LOGITS, static)
        self._mask = bind(MASK_LOGITS, static)
        self._logprobs: dict[int, Callable[..., Any]] = {}

    def place(self, plan: SamplePlan, stream: Stream) -> dict[str, torch.Tensor]:
        """The plan's arrays on the device."""
        names: list[str] = [] if plan.all_greedy else [*CHOICE]
        names += ["history_PL", *PENALTIES] if plan.history_PL.shape[1] else []
        names += BIASES if plan.bias_row_M.size else []
        names += ["mask_PW"] if plan.mask_PW.shape[1] else []
        return {name: self.to_device(getattr(plan, name), stream) for name in names}

    def to_device(self, array: np.ndarray[Any, Any], stream: Stream) -> torch.Tensor:
        """A copy of a host array on the device."""
        source = torch.from_numpy(np.ascontiguousarray(array))
        target = self._backend.empty(source.shape, source.dtype)
        self._backend.to_device(target, source, stream)
        return target

    def run(self, logits_PV: torch.Tensor, plan: SamplePlan, on: dict[str, torch.Tensor], out: Sampled) -> torch.Tensor:
        """Sample every place: token_P. Log-probabilities are the model's: before biases, penalties, temperature."""
        raw_PV = logits_PV.clone() if plan.num_logprobs >= 0 else logits_PV
        if "history_PL" in on:
            row_P = torch.arange(logits_PV.shape[0], dtype=torch.int32, device=logits_PV.device)
            self._penalize(logits_PV, on["history_PL"], row_P, *(on[name] for name in PENALTIES))
        if "bias_row_M" in on:
            self._add_biases(logits_PV, *(on[name] for name in BIASES))
        if "mask_PW" in on:
            self._mask(logits_PV, on["mask_PW"])
        if plan.all_greedy:
            token_P: torch.Tensor = self._argmax(logits_PV)
        else:
            token_P = self._sample(logits_PV, *(on[name] for name in CHOICE))
        if plan.num_logprobs >= 0:
            out.logprobs = self.logprobs(raw_PV, token_P, plan.num_logprobs)
        return token_P

    def logprobs(self, logits_PV: torch.Tensor, token_P: torch.Tensor, num: int) -> LogprobTensors:
        """Of each row's token and of its `num` best."""
        num = min(num, self._vocab_size)
        if num not in self._logprobs:
            self._logprobs[num] = self._bind(LOGPROBS, LogprobsSpec(vocab_size=self._vocab_size, num=num))
        result: LogprobTensors = self._logprobs[num](logits_PV, token_P)
        return result


def to_message(tensors: LogprobTensors) -> TokenLogprobs:
    """Host tensors as a message."""
    logprob, rank, ids, values = (tensor.numpy() for tensor in tensors)
    return TokenLogprobs(logprob_T=logprob, rank_T=rank, top_ids_TX=ids, top_logprobs_TX=values)

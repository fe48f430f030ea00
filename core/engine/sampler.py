"""The sampling half of a step on the device: biases, masks, penalties, the choice, log-probabilities.

Every computation is a bound op; which ones run is decided on the host from the SamplePlan alone.
Suffixes: G sampling rows, V vocabulary, Q prompt places, X best tokens.
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
CHOICE = ("temperature_G", "top_k_G", "top_p_G", "min_p_G", "seed_G", "position_G")
PENALTIES = ("prompt_len_G", "length_G", "presence_G", "frequency_G", "repetition_G")
BIASES = ("bias_row_M", "bias_token_M", "bias_value_M")
"""Fields of a SamplePlan in the order in which sample, penalize and bias_logits take them."""
PLACES_AT_ONCE = 256
"""Prompt places whose logits exist at the same time: bounds memory at 256 vocabularies."""


@dataclass(slots=True)
class Sampled:
    """Device results of one step; filled by the launched work, read after its event."""

    token_G: torch.Tensor | None = None
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
        names += ["history_GL", *PENALTIES] if plan.history_GL.shape[1] else []
        names += BIASES if plan.bias_row_M.size else []
        names += ["mask_GW"] if plan.mask_GW.shape[1] else []
        return {name: self.to_device(getattr(plan, name), stream) for name in names}

    def to_device(self, array: np.ndarray[Any, Any], stream: Stream) -> torch.Tensor:
        """A copy of a host array on the device."""
        source = torch.from_numpy(np.ascontiguousarray(array))
        target = self._backend.empty(source.shape, source.dtype)
        self._backend.to_device(target, source, stream)
        return target

    def run(self, logits_GV: torch.Tensor, plan: SamplePlan, on: dict[str, torch.Tensor], out: Sampled) -> None:
        """Sample every row. Log-probabilities are those of the model: before biases, penalties, temperature."""
        raw_GV = logits_GV.clone() if plan.num_logprobs >= 0 else logits_GV
        if "history_GL" in on:
            row_G = torch.arange(logits_GV.shape[0], dtype=torch.int32, device=logits_GV.device)
            self._penalize(logits_GV, on["history_GL"], row_G, *(on[name] for name in PENALTIES))
        if "bias_row_M" in on:
            self._add_biases(logits_GV, *(on[name] for name in BIASES))
        if "mask_GW" in on:
            self._mask(logits_GV, on["mask_GW"])
        if plan.all_greedy:
            out.token_G = self._argmax(logits_GV)
        else:
            out.token_G = self._sample(logits_GV, *(on[name] for name in CHOICE))
        if plan.num_logprobs >= 0:
            out.logprobs = self.logprobs(raw_GV, out.token_G, plan.num_logprobs)

    def logprobs(self, logits_GV: torch.Tensor, token_G: torch.Tensor | None, num: int) -> LogprobTensors:
        """Of each row's token and of its `num` best."""
        num = min(num, self._vocab_size)
        if num not in self._logprobs:
            self._logprobs[num] = self._bind(LOGPROBS, LogprobsSpec(vocab_size=self._vocab_size, num=num))
        result: LogprobTensors = self._logprobs[num](logits_GV, token_G)
        return result


def to_message(tensors: LogprobTensors) -> TokenLogprobs:
    """Host tensors as a message."""
    logprob, rank, ids, values = (tensor.numpy() for tensor in tensors)
    return TokenLogprobs(logprob_T=logprob, rank_T=rank, top_ids_TX=ids, top_logprobs_TX=values)

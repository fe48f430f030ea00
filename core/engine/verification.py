"""Checks the drafts of a round and makes those of the next, on the device.

Coupled acceptance (the default) takes a draft where it is the token that was sampled at its place anyway;
`rejection` is the classical rule. n-gram drafts are looked up in the token histories that stay on the
device, by slot; a proposer on the host sends predictions instead, of which the device takes what is left
when the tokens in flight are known.
Suffixes: G sampling rows, P places, X = G + 1, V vocabulary, S slots, L tokens of a history, W predicted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from isoinfer.backends.ops import (
    APPEND_HISTORY,
    CONSUME_DRAFTS,
    PROPOSE_NGRAM,
    VERIFY,
    VERIFY_REJECTION,
    ConsumeSpec,
    HistorySpec,
    NgramSpec,
    RejectionSpec,
    VerifySpec,
)
from isoinfer.engine.sampler import CHOICE

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend, Int32Array, Stream
    from isoinfer.engine.arena import StepInputs
    from isoinfer.engine.plan import SamplePlan, StepPlan
    from isoinfer.engine.round_outputs import RoundTensors
    from isoinfer.layers.parts import Bind
    from isoinfer.speculation.config import SpeculativeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTensors:
    """What verification must know of the sampling rows, on the device: `length_G` known tokens of each."""

    slot_G: torch.Tensor
    length_G: torch.Tensor
    start_X: torch.Tensor


class Verification:
    """Bound ops of one kind of speculation, and the histories of all slots where it needs them."""

    def __init__(
        self,
        backend: Backend,
        bind: Bind,
        config: SpeculativeConfig,
        *,
        depth: int,
        num_slots: int,
        max_model_len: int,
        vocab_size: int,
    ) -> None:
        self._backend, self._config = backend, config
        drafts = config.num_drafts
        self._is_coupled = config.accept == "coupled"
        self._verify = bind(VERIFY, VerifySpec(num_drafts=drafts))
        if not self._is_coupled:
            static = RejectionSpec(num_drafts=drafts, vocab_size=vocab_size)
            self._verify_rejection = bind(VERIFY_REJECTION, static)
        self._keeps_history = config.keeps_history(depth)
        if self._keeps_history:
            self._history_SL = backend.empty((num_slots, max_model_len + 1), torch.int32)
            ngram = NgramSpec(num_drafts=drafts, min_ngram=config.min_match, max_ngram=config.max_ngram)
            self._propose = bind(PROPOSE_NGRAM, ngram)
            self._append = bind(APPEND_HISTORY, HistorySpec(num_tokens=drafts + 1))
        self._consume = bind(CONSUME_DRAFTS, ConsumeSpec(num_drafts=drafts))

    def enter(self, plan: StepPlan, stream: Stream) -> None:
        """Copy the known tokens of requests that are new in their slots into the histories."""
        end = 0
        for slot, count in zip(plan.entered_slot_E.tolist(), plan.entered_len_E.tolist(), strict=True):
            tokens = torch.from_numpy(plan.entered_tokens_T[end : end + count])
            self._backend.to_device(self._history_SL[slot, :count], tokens, stream)
            end += count

    def take_predictions(self, plan: StepPlan, map_R: Int32Array, outputs: RoundTensors, stream: Stream) -> None:
        """Make the drafts of remapped rows out of what the host predicted and what the last round said since.

        Where nothing is left of a prediction, the device's own drafts stay.
        """
        width = plan.predicted_RX.shape[1]
        if width == 0:
            return
        rows = np.flatnonzero(map_R >= 0)
        predicted_GW = np.zeros((int(map_R.max()) + 1, width), dtype=np.int32)
        count_G = np.zeros(len(predicted_GW), dtype=np.int32)
        predicted_GW[map_R[rows]], count_G[map_R[rows]] = plan.predicted_RX[rows], plan.num_predicted_R[rows]
        on_device = (self._to_device(predicted_GW, stream), self._to_device(count_G, stream))
        stream.launch(self._run_consume, *on_device, outputs)

    def place(self, plan: StepPlan, sample_plan: SamplePlan, stream: Stream) -> RowTensors:
        """The rows' numbers on the device, in one copy."""
        places_G = sample_plan.places_G
        start_X = np.zeros(places_G.size + 1, dtype=np.int32)
        np.cumsum(places_G, out=start_X[1:])
        length_G = sample_plan.position_P[start_X[:-1]]
        numbers = self._to_device(np.concatenate([plan.slot_R[plan.samples_R], length_G, start_X]), stream)
        count = places_G.size
        return RowTensors(slot_G=numbers[:count], length_G=numbers[count : 2 * count], start_X=numbers[2 * count :])

    def run(
        self,
        token_P: torch.Tensor,
        logits_PV: torch.Tensor,
        inputs: StepInputs,
        rows: RowTensors,
        on: dict[str, torch.Tensor],
        outputs: RoundTensors,
    ) -> None:
        """Accept drafts, and propose new ones. `on`: the SamplePlan's arrays on the device. Writes `outputs`."""
        drafted = (token_P, inputs.token_ids_T, inputs.places_P, rows.start_X)
        if self._is_coupled or "temperature_P" not in on:  # where all is greedy, both rules are the same
            verified = self._verify(*drafted)
        else:
            verified = self._verify_rejection(*drafted, logits_PV, *(on[name] for name in CHOICE))
        token_GJ, accepted_G, rejected_G, last_token_G = verified
        count = last_token_G.numel()
        outputs.token_GJ[:count].copy_(token_GJ)
        outputs.accepted_G[:count].copy_(accepted_G)
        outputs.rejected_G[:count].copy_(rejected_G)
        outputs.last_token_G[:count].copy_(last_token_G)
        if self._keeps_history:
            self._append(self._history_SL, rows.slot_G, rows.length_G, token_GJ, accepted_G + 1)
            draft_GK, found_G = self._propose(self._history_SL, rows.slot_G, rows.length_G + accepted_G + 1)
            outputs.draft_GK[:count].copy_(draft_GK)
            outputs.found_G[:count].copy_(found_G)

    def _run_consume(self, predicted_GW: torch.Tensor, count_G: torch.Tensor, outputs: RoundTensors) -> None:
        rows = predicted_GW.shape[0]
        with torch.inference_mode():
            draft_GK, _ = self._consume(
                predicted_GW,
                count_G,
                outputs.token_GJ[:rows],
                outputs.accepted_G[:rows],
                outputs.draft_GK[:rows],
                outputs.found_G[:rows],
            )
            outputs.draft_GK[:rows].copy_(draft_GK)

    def _to_device(self, array: np.ndarray[tuple[int, ...], np.dtype[np.int32]], stream: Stream) -> torch.Tensor:
        source = torch.from_numpy(np.ascontiguousarray(array))
        target = self._backend.empty(source.shape, source.dtype)
        self._backend.to_device(target, source, stream)
        return target

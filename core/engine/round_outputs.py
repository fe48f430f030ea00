"""What a round leaves on the device for the next one, and the host buffers that its results land in.

One set of device buffers is enough: the next round takes its tokens in stream order before its own sampling
writes here again. Host buffers are a ring of depth + 1, read when their step settles.
Suffixes: G sampling rows, K most drafts of a row, J = K + 1, R rows of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from isoinfer.engine.plan import FRESH, StepPlan
from isoinfer.errors import StepError

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend, Int32Array, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTensors:
    """int32, one row for each sampling row. `token_GJ`: its new tokens, `accepted_G` + 1 of them; the last of these
    is `last_token_G`. `draft_GK`: guesses at what follows, `found_G` of them real."""

    last_token_G: torch.Tensor
    token_GJ: torch.Tensor
    accepted_G: torch.Tensor
    rejected_G: torch.Tensor
    draft_GK: torch.Tensor
    found_G: torch.Tensor

    def parts(self, num_drafts: int) -> tuple[torch.Tensor, ...]:
        """What the host wants to know: without drafts, the last token says all."""
        if num_drafts == 0:
            return (self.last_token_G,)
        return self.token_GJ, self.accepted_G, self.draft_GK, self.found_G


def _allocate(empty: Callable[..., torch.Tensor], max_rows: int, num_drafts: int) -> RoundTensors:
    def zeros(*shape: int) -> torch.Tensor:
        return empty(shape, torch.int32).zero_()

    return RoundTensors(
        last_token_G=zeros(max_rows),
        token_GJ=zeros(max_rows, num_drafts + 1),
        accepted_G=zeros(max_rows),
        rejected_G=zeros(max_rows),
        draft_GK=zeros(max_rows, num_drafts),
        found_G=zeros(max_rows),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResults:
    """The fields of a StepResult that come from these tensors."""

    token_GJ: Int32Array
    count_G: Int32Array
    draft_GK: Int32Array
    num_drafts_G: Int32Array


class RoundOutputs:
    """Device tensors for the largest step, host copies, and which row of the last sampled step stands where."""

    def __init__(self, backend: Backend, *, max_rows: int, num_drafts: int, depth: int) -> None:
        self._backend, self._num_drafts = backend, num_drafts
        # Zeroed: a round that failed writes nothing, and rows that follow it are of no use but need valid tokens.
        self.device = _allocate(backend.empty, max_rows, num_drafts)
        self._ring = [_allocate(backend.host_buffer, max_rows, num_drafts) for _ in range(depth + 1)]
        self._counted = [backend.event() for _ in self._ring]
        self._newest = 0
        self._step_id = 0
        self._place_R: Int32Array = np.zeros(0, dtype=np.int32)

    def copy(self, plan: StepPlan, stream: Stream, *, counts_first: bool) -> int:
        """Enqueue the copies to the host after the sampling of `plan`. Which host buffer they go to.

        `counts_first`: the counts of rejected drafts get an event of their own before everything else.
        """
        self._step_id = plan.step_id
        self._place_R = np.where(plan.samples_R, np.cumsum(plan.samples_R) - 1, FRESH).astype(np.int32)
        self._newest = (self._newest + 1) % len(self._ring)
        host, count = self._ring[self._newest], int(plan.samples_R.sum())
        if counts_first:
            self._backend.to_host(host.rejected_G[:count], self.device.rejected_G[:count], stream)
            self._counted[self._newest].record(stream)
        for target, source in zip(host.parts(self._num_drafts), self.device.parts(self._num_drafts), strict=True):
            self._backend.to_host(target[:count], source[:count], stream)
        return self._newest

    def rejected(self) -> Int32Array:
        """Wait for how many drafts the last sampled step rejected, by its sampling rows, and for nothing else.

        A failure of that step is left for when it settles; what its rows go on with is of no use anyway.
        """
        rejected_G: Int32Array = self._ring[self._newest].rejected_G.numpy()
        try:
            self._counted[self._newest].synchronize()
        except StepError:
            return np.zeros_like(rejected_G)
        return rejected_G

    def forget_rejected(self) -> None:
        """Launched once the counts of the last round are used: if this one fails, its rows reject nothing.

        With counts of other rows in their place, the next round would compute positions that do not exist.
        """
        self.device.rejected_G.zero_()

    def read(self, buffer: int, count: int) -> RowResults:
        """What landed in a host buffer, once its step is done. StepError for what failed before its counts."""
        self._counted[buffer].synchronize()
        host = self._ring[buffer]
        if self._num_drafts == 0:
            token_GJ = host.last_token_G[:count].numpy().reshape(count, 1).copy()
            none_GK = np.zeros((count, 0), dtype=np.int32)
            ones_G = np.ones(count, dtype=np.int32)
            return RowResults(token_GJ=token_GJ, count_G=ones_G, draft_GK=none_GK, num_drafts_G=ones_G - 1)
        token_GJ, accepted_G, draft_GK, found_G = (part[:count].numpy().copy() for part in host.parts(self._num_drafts))
        return RowResults(token_GJ=token_GJ, count_G=accepted_G + 1, draft_GK=draft_GK, num_drafts_G=found_G)

    def map_rows(self, plan: StepPlan) -> Int32Array:
        """For each row of `plan`, the place of its request here, or -1 where it needs nothing."""
        if not plan.is_remapped:
            return plan.remap_R
        assert plan.step_id == self._step_id + 1, "a row goes on from a step that is not the last one"
        map_R: Int32Array = np.where(plan.remap_R >= 0, self._place_R[plan.remap_R], FRESH).astype(np.int32)
        assert ((map_R >= 0) == (plan.remap_R >= 0)).all(), "a row goes on from one that did not sample"
        return map_R

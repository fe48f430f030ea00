"""Runs plans on a backend: submit the forward, later the sampling, later settle. It schedules nothing.

`submit` and `sample` return at once; only `settle` waits. The forward and the sampling are separate so
that the host can settle the step before in between. Suffixes: T tokens, R rows, P places, G sampling rows,
H hidden, V vocabulary.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
import torch

from isoinfer.backends.interface import AttentionBatch
from isoinfer.backends.ops import GATHER_ROWS, REMAP, REMAP_SLOTS, GatherSpec, RemapSlotsSpec, RemapSpec
from isoinfer.engine.arena import ArenaSizes, InputArena, StepInputs
from isoinfer.engine.decode_graphs import DecodeGraphs, GraphConfig
from isoinfer.engine.plan import SamplePlan, StepPlan, StepResult
from isoinfer.engine.round_outputs import RoundOutputs
from isoinfer.engine.sampler import PLACES_AT_ONCE, LogprobTensors, Sampled, Sampler, to_message
from isoinfer.errors import StepError
from isoinfer.layers.batch import ForwardBatch, GroupInputs

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend, Event, Forward, Int32Array, KVCache
    from isoinfer.engine.verification import RowTensors, Verification
    from isoinfer.layers.parts import Bind


@dataclass(slots=True, kw_only=True)
class StepHandle:
    """A submitted step. The tensors belong to the device until the event after sampling."""

    plan: StepPlan
    inputs: StepInputs
    done: Event
    is_sampled: bool = False
    sampled: Sampled = field(default_factory=Sampled)
    hidden_TH: torch.Tensor | None = None
    logits_PV: torch.Tensor | None = None
    buffer: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSpec:
    """What a runner must know of the model and of the largest step. `num_drafts`: most drafts of a row."""

    sizes: ArenaSizes
    block_size: int
    vocab_size: int
    hidden_size: int
    dtype: str
    num_drafts: int = 0
    graphs: GraphConfig | None = None


class Runner:
    """One model on one backend with one KV cache. `verification`: what checks and makes drafts, if anything does."""

    def __init__(
        self,
        backend: Backend,
        forward: Forward,
        kv: KVCache,
        spec: RunnerSpec,
        bind: Bind,
        verification: Verification | None = None,
    ) -> None:
        self._backend, self._forward, self._kv, self._spec = backend, forward, kv, spec
        self._stream = backend.stream()
        self._arena = InputArena(backend, spec.sizes, spec.block_size)
        self._outputs = RoundOutputs(
            backend, max_rows=spec.sizes.max_rows, num_drafts=spec.num_drafts, depth=spec.sizes.depth
        )
        self._gather = bind(GATHER_ROWS, GatherSpec(width=spec.hidden_size, dtype=spec.dtype))
        self._remap = bind(REMAP, RemapSpec(num_drafts=spec.num_drafts))
        self._remap_slots = bind(REMAP_SLOTS, RemapSlotsSpec(block_size=spec.block_size))
        self._sampler = Sampler(backend, bind, spec.vocab_size)
        self._verification = verification
        self._graphs = None
        if spec.graphs is not None:
            self._graphs = DecodeGraphs(backend, forward, kv, config=spec.graphs, vocab_size=spec.vocab_size)
        self._events = cycle([backend.event() for _ in range(spec.sizes.depth + 1)])
        self._last: StepHandle | None = None
        self.num_host_length_waits = 0

    def submit(self, plan: StepPlan) -> StepHandle:
        """Launch the forward of `plan`: in a graph where there is one for it."""
        map_R = self._outputs.map_rows(plan)
        size = None if self._graphs is None else self._graphs.size_for(plan)
        if size is None or self._graphs is None:
            inputs = self._arena.load(plan, map_R, self._stream)
        else:
            inputs = self._arena.load_decode(plan, map_R, size, self._graphs.scratch, self._stream)
        handle = StepHandle(plan=plan, inputs=inputs, done=next(self._events))
        if self._verification is not None:
            self._verification.enter(plan, self._stream)
        if plan.is_remapped:
            self._take_over(inputs, plan, map_R)
        if self._spec.num_drafts:
            self._stream.launch(self._outputs.forget_rejected)
        if size is None or self._graphs is None:
            self._stream.launch(self._run_forward, handle, self._batch(plan, inputs, map_R))
        else:
            assert self._last is None or self._last.is_sampled, "the logits before are not sampled yet"
            handle.logits_PV = self._graphs.submit(plan, size, inputs, self._stream)
        self._last = handle
        return handle

    def _take_over(self, inputs: StepInputs, plan: StepPlan, map_R: Int32Array) -> None:
        """Put the previous round's tokens into this round's inputs, on the device."""
        outputs = self._outputs.device
        if self._verification is not None:
            self._verification.take_predictions(plan, map_R, outputs, self._stream)
        arguments = (inputs.token_ids_T, inputs.positions_T, inputs.kv_len_R, inputs.query_start_X, inputs.map_R)
        self._stream.launch(self._remap, *arguments, outputs.last_token_G, outputs.rejected_G, outputs.draft_GK)
        if plan.knows_lengths:
            return
        for slots_T, table_RB in zip(inputs.slots, inputs.block_tables, strict=True):
            self._stream.launch(
                self._remap_slots, slots_T, inputs.positions_T, inputs.query_start_X, inputs.map_R, table_RB
            )

    def _batch(self, plan: StepPlan, inputs: StepInputs, map_R: Int32Array) -> ForwardBatch:
        upper_R: Int32Array = plan.start_R + plan.query_len_R
        exact_R = self._exact_lengths(plan, upper_R, map_R)
        groups = []
        for slots_T, table_RB in zip(inputs.slots, inputs.block_tables, strict=True):
            attention = AttentionBatch(
                query_len_R=plan.query_len_R,
                kv_len_upper_R=upper_R,
                kv_len_device_R=inputs.kv_len_R,
                block_table_RB=table_RB,
                block_size=self._spec.block_size,
                maybe_kv_len_host_R=exact_R,
            )
            groups.append(GroupInputs(slots_T=slots_T, plan=self._backend.plan_attention(attention, self._stream)))
        groups += [GroupInputs(slots_T=ring.ring_T, plan=ring) for ring in inputs.rings]
        return ForwardBatch(
            token_ids_T=inputs.token_ids_T,
            positions_T=inputs.positions_T,
            groups=tuple(groups),
            num_tokens=plan.num_tokens,
        )

    def _exact_lengths(self, plan: StepPlan, upper_R: Int32Array, map_R: Int32Array) -> Int32Array | None:
        """KV lengths on the host. While drafts are unsettled only the device knows them; a backend whose
        attention needs them here waits for the previous round's accepted counts, and for nothing else."""
        if plan.knows_lengths:
            return upper_R
        if not self._backend.capabilities.host_lengths:
            return None
        self.num_host_length_waits += 1
        rejected_G = self._outputs.rejected()
        return upper_R - np.where(map_R >= 0, rejected_G[map_R], 0).astype(np.int32)

    def sample(self, handle: StepHandle, plan: SamplePlan) -> None:
        """Launch the sampling of a submitted step, its copies to the host, and the mark that `settle` waits for."""
        if plan.num_places:
            placed = self._sampler.place(plan, self._stream)
            check = self._verification
            rows = None if check is None else check.place(handle.plan, plan, self._stream)
            self._stream.launch(self._run_sampling, handle, plan, placed, rows)
        waits = self._spec.num_drafts > 0 and self._backend.capabilities.host_lengths
        handle.buffer = self._outputs.copy(handle.plan, self._stream, counts_first=waits)
        if handle.plan.prompt_index_Q.size:
            index_Q = self._sampler.to_device(handle.plan.prompt_index_Q, self._stream)
            target_Q = self._sampler.to_device(handle.plan.prompt_target_Q, self._stream)
            self._stream.launch(self._run_prompt_logprobs, handle, index_Q, target_Q)
        handle.is_sampled = True
        handle.done.record(self._stream)

    def settle(self, handle: StepHandle) -> StepResult:
        """Wait for the step and read it. StepError if anything in it failed."""
        try:
            handle.done.synchronize()
        finally:
            self._arena.settled()
        rows, sampled = self._outputs.read(handle.buffer, int(handle.plan.samples_R.sum())), handle.sampled
        return StepResult(
            step_id=handle.plan.step_id,
            token_GJ=rows.token_GJ,
            count_G=rows.count_G,
            draft_GK=rows.draft_GK,
            num_drafts_G=rows.num_drafts_G,
            logprobs=None if sampled.logprobs is None else to_message(_on_host(sampled.logprobs)),
            prompt_logprobs=None if sampled.prompt_logprobs is None else to_message(_joined(sampled.prompt_logprobs)),
        )

    def abandon(self) -> None:
        """Give up what was submitted and not settled, once the device is done with it; its errors are dropped."""
        done = self._backend.event()
        done.record(self._stream)
        with suppress(StepError):
            done.synchronize()
        self._arena.abandon()
        self._last = None

    def close(self) -> None:
        """Finish what was launched."""
        self._stream.synchronize()

    # launched on the stream

    def _run_forward(self, handle: StepHandle, batch: ForwardBatch) -> None:
        with torch.inference_mode():
            hidden_TH = self._forward.hidden(batch, self._kv)
            if handle.plan.prompt_index_Q.size:
                handle.hidden_TH = hidden_TH
            if handle.inputs.places_P.numel():
                handle.logits_PV = self._forward.logits(self._gather(hidden_TH, handle.inputs.places_P))

    def _run_sampling(
        self, handle: StepHandle, plan: SamplePlan, placed: dict[str, torch.Tensor], rows: RowTensors | None
    ) -> None:
        logits_PV, outputs = handle.logits_PV, self._outputs.device
        assert logits_PV is not None
        with torch.inference_mode():
            token_P = self._sampler.run(logits_PV, plan, placed, handle.sampled)
            if self._verification is None or rows is None:
                outputs.last_token_G[: token_P.numel()].copy_(token_P)
            else:
                self._verification.run(token_P, logits_PV, handle.inputs, rows, placed, outputs)
        handle.logits_PV = None

    def _run_prompt_logprobs(self, handle: StepHandle, index_Q: torch.Tensor, target_Q: torch.Tensor) -> None:
        assert handle.hidden_TH is not None
        num, parts = handle.plan.num_prompt_logprobs, []
        with torch.inference_mode():
            for first in range(0, index_Q.numel(), PLACES_AT_ONCE):
                places = slice(first, first + PLACES_AT_ONCE)
                logits_QV = self._forward.logits(self._gather(handle.hidden_TH, index_Q[places]))
                parts.append(self._sampler.logprobs(logits_QV, target_Q[places], num))
        handle.sampled.prompt_logprobs, handle.hidden_TH = parts, None


def _on_host(tensors: LogprobTensors) -> LogprobTensors:
    first, second, third, fourth = (tensor.cpu() for tensor in tensors)
    return first, second, third, fourth


def _joined(parts: list[LogprobTensors]) -> LogprobTensors:
    first, second, third, fourth = (torch.cat(tensors).cpu() for tensors in zip(*parts, strict=True))
    return first, second, third, fourth

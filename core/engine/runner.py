"""Runs plans on a backend: submit the forward, later the sampling, later settle. It schedules nothing.

`submit` and `sample` return at once; only `settle` waits. The forward and the sampling are separate so
that the host can settle the step before in between. Suffixes: T tokens, R rows, G sampling rows, H hidden.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from isoinfer.backends.interface import AttentionBatch
from isoinfer.backends.ops import GATHER_ROWS, GatherSpec
from isoinfer.engine.arena import InputArena, StepInputs
from isoinfer.engine.decode_graphs import DecodeGraphs, GraphConfig
from isoinfer.engine.plan import SamplePlan, StepPlan, StepResult
from isoinfer.engine.sampler import PLACES_AT_ONCE, LogprobTensors, Sampled, Sampler, to_message
from isoinfer.errors import StepError
from isoinfer.layers.batch import ForwardBatch

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend, Event, KVCache
    from isoinfer.layers.parts import Bind
    from isoinfer.models.model import Forward


@dataclass(slots=True, kw_only=True)
class StepHandle:
    """A submitted step. The tensors belong to the device until the event after sampling."""

    plan: StepPlan
    done: Event
    is_sampled: bool = False
    sampled: Sampled = field(default_factory=Sampled)
    hidden_TH: torch.Tensor | None = None
    logits_GV: torch.Tensor | None = None
    token_host_G: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """The largest step: tokens, rows, blocks of a row, and steps in flight."""

    max_tokens: int
    max_rows: int
    max_blocks: int
    depth: int = 1


class Runner:
    """One model on one backend with one KV cache."""

    def __init__(
        self,
        backend: Backend,
        forward: Forward,
        kv: KVCache,
        *,
        bind: Bind,
        limits: RunnerLimits,
        block_size: int,
        vocab_size: int,
        hidden_size: int,
        dtype: str,
        graphs: GraphConfig | None = None,
    ) -> None:
        self._backend, self._forward, self._kv = backend, forward, kv
        self._block_size = block_size
        self._stream = backend.stream()
        self._arena = InputArena(
            backend,
            max_tokens=limits.max_tokens,
            max_rows=limits.max_rows,
            max_blocks=limits.max_blocks,
            depth=limits.depth,
        )
        self._gather = bind(GATHER_ROWS, GatherSpec(width=hidden_size, dtype=dtype))
        self._sampler = Sampler(backend, bind, vocab_size)
        self._graphs = None
        if graphs is not None:
            self._graphs = DecodeGraphs(backend, forward, kv, self._arena, config=graphs, vocab_size=vocab_size)
        self._in_graph: StepHandle | None = None

    def submit(self, plan: StepPlan) -> StepHandle:
        """Launch the forward of `plan`: in a graph where there is one for it."""
        handle = StepHandle(plan=plan, done=self._backend.event())
        if self._graphs is not None and (size := self._graphs.size_for(plan)) is not None:
            assert self._in_graph is None or self._in_graph.is_sampled, "the logits before are not sampled yet"
            self._in_graph = handle
            handle.logits_GV = self._graphs.submit(plan, size, self._stream)
        else:
            self._submit_eager(handle)
        return handle

    def _submit_eager(self, handle: StepHandle) -> None:
        plan = handle.plan
        inputs = self._arena.load(plan, self._block_size, self._stream)
        attention = AttentionBatch(
            query_len_R=plan.query_len_R,
            kv_len_upper_R=plan.start_R + plan.query_len_R,
            kv_len_device_R=inputs.kv_len_R,
            block_table_RB=inputs.block_table_RB,
            block_size=self._block_size,
            maybe_kv_len_host_R=plan.start_R + plan.query_len_R,
        )
        batch = ForwardBatch(
            token_ids_T=inputs.token_ids_T,
            positions_T=inputs.positions_T,
            slots_T=inputs.slots_T,
            plan=self._backend.plan_attention(attention, self._stream),
            num_tokens=plan.num_tokens,
        )
        self._stream.launch(self._run_forward, handle, batch, inputs)

    def sample(self, handle: StepHandle, plan: SamplePlan) -> None:
        """Launch the sampling of a submitted step, its copies to the host, and the mark that `settle` waits for."""
        if plan.temperature_G.size:
            placed = self._sampler.place(plan, self._stream)
            self._stream.launch(self._run_sampling, handle, plan, placed)
            handle.token_host_G = self._backend.host_buffer((plan.temperature_G.size,), torch.int32)
            self._stream.launch(self._copy_tokens, handle)
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
        sampled = handle.sampled
        token_G = torch.empty(0, dtype=torch.int32) if handle.token_host_G is None else handle.token_host_G
        return StepResult(
            step_id=handle.plan.step_id,
            token_G=token_G.numpy(),
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
        self._in_graph = None

    def close(self) -> None:
        """Finish what was launched."""
        self._stream.synchronize()

    # launched on the stream

    def _run_forward(self, handle: StepHandle, batch: ForwardBatch, inputs: StepInputs) -> None:
        with torch.inference_mode():
            hidden_TH = self._forward.hidden(batch, self._kv)
            if handle.plan.prompt_index_Q.size:
                handle.hidden_TH = hidden_TH
            if inputs.logits_rows_G.numel():
                handle.logits_GV = self._forward.logits(self._gather(hidden_TH, inputs.logits_rows_G))

    def _run_sampling(self, handle: StepHandle, plan: SamplePlan, placed: dict[str, torch.Tensor]) -> None:
        assert handle.logits_GV is not None
        with torch.inference_mode():
            self._sampler.run(handle.logits_GV, plan, placed, handle.sampled)
        handle.logits_GV = None

    def _copy_tokens(self, handle: StepHandle) -> None:
        assert handle.token_host_G is not None
        assert handle.sampled.token_G is not None
        handle.token_host_G.copy_(handle.sampled.token_G, non_blocking=True)

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

"""Steps that only decode, run as captured graphs: one for each of a few batch sizes, padded up to the next.

A graph covers everything from the step's inputs, which lie at one place per size in the arena, to the
logits, which land in one fixed buffer. Sampling stays outside: what it makes of the logits are new
tensors, and it is enqueued before the next step overwrites them. On replay the host does nothing but
stage the inputs and replay; where attention reads lengths from the host, it also plans.
Suffixes: R rows of the step and of padding, V vocabulary.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from isoinfer.backends.interface import AttentionBatch
from isoinfer.layers.batch import ForwardBatch, GroupInputs

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend, Forward, Graph, KVCache, Stream
    from isoinfer.engine.arena import Scratch, StepInputs
    from isoinfer.engine.plan import StepPlan

SPACING = 8
"""Sizes below are powers of two, from here on multiples: at most seven padding rows, few graphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphConfig:
    """`sizes`: rows of the graphs, ascending. `scratch`: where padding rows write. `max_model_len` in tokens."""

    sizes: tuple[int, ...]
    scratch: Scratch
    max_model_len: int


def graph_sizes(max_rows: int, limit: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 16, 24, ... up to `max_rows`; further apart, then without the smallest, to be at most `limit`."""
    if limit < 1:
        return ()
    spacing = SPACING
    while len(sizes := _sizes(max_rows, spacing)) > limit and spacing < max_rows:
        spacing *= 2
    return sizes[-limit:]


def _sizes(max_rows: int, spacing: int) -> tuple[int, ...]:
    powers = (1 << power for power in range(spacing.bit_length() - 1))
    return (*(size for size in powers if size < max_rows), *range(spacing, max_rows, spacing), max_rows)


@dataclass(slots=True, kw_only=True)
class _Decode:
    """One size. `batch`: what the forward reads. `first`: what the graph was captured with, kept alive for it."""

    size: int
    batch: ForwardBatch
    first: ForwardBatch
    graph: Graph | None = None

    @property
    def host_params(self) -> dict[str, Any]:
        """What attention reads from the host in this step, the same for every KV group with blocks. They come first."""
        return self.batch.groups[0].plan.host_params


class DecodeGraphs:
    """The graphs of one runner, each captured when its size first occurs."""

    def __init__(
        self,
        backend: Backend,
        forward: Forward,
        kv: KVCache,
        *,
        config: GraphConfig,
        vocab_size: int,
    ) -> None:
        self._backend, self._forward, self._kv = backend, forward, kv
        self._config = config
        self._logits_RV = backend.empty((config.sizes[-1], vocab_size), torch.float32)
        self._decodes: dict[int, _Decode] = {}
        self._may_capture = True

    @property
    def scratch(self) -> Scratch:
        """Where padding rows write."""
        return self._config.scratch

    def size_for(self, plan: StepPlan) -> int | None:
        """Rows of the graph that runs `plan`; None where the step must run without one."""
        if plan.num_tokens != plan.num_rows or plan.prompt_index_Q.size or not plan.samples_R.all():
            return None
        if not plan.knows_lengths:
            return None  # a graph's slots are the host's
        size = next((size for size in self._config.sizes if size >= plan.num_rows), None)
        if size is None or size - plan.num_rows > self._config.scratch.num_slots:
            return None
        return size if self._may_capture or self._is_captured(size) else None

    def submit(self, plan: StepPlan, size: int, inputs: StepInputs, stream: Stream) -> torch.Tensor:
        """Launch the step in the graph of `size` rows, with `inputs` padded to it. Its logits, valid in stream
        order until the next `submit`."""
        decode = self._decodes.get(size)
        is_new = decode is None or decode.host_params
        batch = self._batch(plan, size, inputs, stream) if is_new or decode is None else decode.batch
        if decode is None:
            decode = self._decodes[size] = _Decode(size=size, batch=batch, first=batch)
        stream.launch(self._run, decode, batch)
        return self._logits_RV[: plan.num_rows]

    def _batch(self, plan: StepPlan, size: int, inputs: StepInputs, stream: Stream) -> ForwardBatch:
        kv_len_R = np.ones(size, dtype=np.int32)
        kv_len_R[: plan.num_rows] = plan.start_R + 1
        groups = []
        for slots_T, table_RB in zip(inputs.slots, inputs.block_tables, strict=True):
            attention = AttentionBatch(
                query_len_R=np.ones(size, dtype=np.int32),
                kv_len_upper_R=np.full(size, self._config.max_model_len, dtype=np.int32),
                kv_len_device_R=inputs.kv_len_R,
                block_table_RB=table_RB,
                block_size=self._config.scratch.block_size,
                maybe_kv_len_host_R=kv_len_R,
            )
            groups.append(GroupInputs(slots_T=slots_T, plan=self._backend.plan_attention(attention, stream)))
        groups += [GroupInputs(slots_T=ring.ring_T, plan=ring) for ring in inputs.rings]
        return ForwardBatch(
            token_ids_T=inputs.token_ids_T, positions_T=inputs.positions_T, groups=tuple(groups), num_tokens=size
        )

    def _is_captured(self, size: int) -> bool:
        return size in self._decodes and self._decodes[size].graph is not None

    # launched on the stream

    def _run(self, decode: _Decode, batch: ForwardBatch) -> None:
        decode.batch = batch
        with torch.inference_mode():
            if decode.graph is None and self._may_capture:
                self._capture(decode)
            if decode.graph is None:
                self._forward_step(decode)
            else:
                decode.graph.replay(decode.host_params)

    def _capture(self, decode: _Decode) -> None:
        decode.first = decode.batch
        try:
            decode.graph = self._backend.capture(self._forward_step, decode, host_params=tuple(decode.host_params))
        except Exception as error:  # whatever a device refuses to record still runs without a graph
            self._may_capture = False
            warnings.warn(
                f"a step of {decode.size} rows cannot be captured, so it and later sizes run without a graph: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )

    def _forward_step(self, decode: _Decode, **host_params: Any) -> None:
        """What is captured. A graph that calls it again finds the values of `host_params` in `decode.batch` too."""
        hidden_RH = self._forward.hidden(decode.batch, self._kv)
        self._logits_RV[: decode.size].copy_(self._forward.logits(hidden_RH))

"""A backend made from another one by composition: all is delegated, but for the identity and one op.

Every member of the seam is written out, so that a type checker compares it with the protocol and so
that the file reads as the list of what a real backend has to bring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from isoinfer.backends.descriptor import DeviceInfo
from isoinfer.backends.interface import (
    AttentionBatch,
    AttentionPlan,
    Backend,
    Capabilities,
    Event,
    Forward,
    Graph,
    Int32Array,
    KVCache,
    KVLayout,
    KVSpec,
    MemoryInfo,
    ModelSpec,
    Stream,
    Support,
    Weight,
)
from isoinfer.backends.ops.spec import OpSpec


def silu_mul(x_T2I: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of `x_T2I` = gate | up. Computes in float32 or wider and rounds once. Returns `[T, I]`."""
    gate_TI, up_TI = x_T2I.to(torch.promote_types(x_T2I.dtype, torch.float32)).chunk(2, dim=-1)
    return (gate_TI * torch.sigmoid(gate_TI) * up_TI).to(x_T2I.dtype)


# Batch invariant: every element is computed on its own.
_OWN = Support(status="supported", provider="toy.silu_mul", batch_invariant=True)


class ToyBackend:
    """The toy chip. `inner` does the work; `silu_mul` is ours."""

    def __init__(self, info: DeviceInfo, inner: Backend) -> None:
        self._info = info
        self._inner = inner

    # identity

    @property
    def name(self) -> str:
        """Our own: reports and start-up lines must not name the inner backend."""
        return "toy"

    @property
    def info(self) -> DeviceInfo:
        """The device we were made for."""
        return self._info

    @property
    def capabilities(self) -> Capabilities:
        """The inner backend's: we can do what it can."""
        return self._inner.capabilities

    @property
    def collective_backend(self) -> str:
        """The torch.distributed backend."""
        return self._inner.collective_backend

    def describe(self) -> list[str]:
        """What was chosen at start."""
        return ["toy: silu_mul is its own, all else is delegated", *self._inner.describe()]

    # ops

    def support(self, op: OpSpec, static: Any) -> Support:
        """What `bind` would take."""
        return _OWN if op.name == "silu_mul" else self._inner.support(op, static)

    def supports(self, op: OpSpec, static: Any) -> list[Support]:
        """All that could serve `op`, preferred first: ours stands before the inner backend's."""
        own = [_OWN] if op.name == "silu_mul" else []
        return own + self._inner.supports(op, static)

    def bind(self, op: OpSpec, static: Any) -> Callable[..., Any]:
        """The function itself, with no wrapper around it."""
        return silu_mul if op.name == "silu_mul" else self._inner.bind(op, static)

    def prepare_weight(self, role: str, tensor: torch.Tensor, quant: str | None) -> Weight:
        """The inner backend's form, since its linear ops read it."""
        return self._inner.prepare_weight(role, tensor, quant)

    def bind_model(self, spec: ModelSpec) -> Forward | None:
        """The op path. The inner backend's answer would leave our op out."""
        return None

    # runtime

    def stream(self) -> Stream:
        """A stream of the inner backend, as are events, graphs and buffers."""
        return self._inner.stream()

    def event(self) -> Event:
        """An event."""
        return self._inner.event()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Device memory."""
        return self._inner.empty(shape, dtype)

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Host memory for async copies."""
        return self._inner.host_buffer(shape, dtype)

    def to_device(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream) -> None:
        """Copy to the device."""
        self._inner.to_device(dst, src, stream)

    def to_host(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream) -> None:
        """Copy to the host."""
        self._inner.to_host(dst, src, stream)

    def memory(self) -> MemoryInfo:
        """Bytes."""
        return self._inner.memory()

    def capture(self, fn: Callable[..., None], *args: Any, host_params: Sequence[str] = ()) -> Graph:
        """A replayable piece of work."""
        return self._inner.capture(fn, *args, host_params=host_params)

    # kv

    def kv_layout(self, specs: Sequence[KVSpec]) -> KVLayout:
        """How KV is laid out."""
        return self._inner.kv_layout(specs)

    def allocate_kv(self, specs: Sequence[KVSpec], num_blocks: Sequence[int]) -> KVCache:
        """KV of all groups."""
        return self._inner.allocate_kv(specs, num_blocks)

    def copy_blocks(self, kv: KVCache, group: int, src_B: Int32Array, dst_B: Int32Array, stream: Stream) -> None:
        """Copy blocks of a group on the device."""
        self._inner.copy_blocks(kv, group, src_B, dst_B, stream)

    def export_blocks(self, kv: KVCache, layer: int, ids_B: Int32Array) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V on the host, `[B, S, K, D]` each."""
        return self._inner.export_blocks(kv, layer, ids_B)

    def import_blocks(
        self, kv: KVCache, layer: int, ids_B: Int32Array, k_BSKD: torch.Tensor, v_BSKD: torch.Tensor
    ) -> None:
        """The inverse of `export_blocks`."""
        self._inner.import_blocks(kv, layer, ids_B, k_BSKD, v_BSKD)

    def discard_blocks(self, kv: KVCache, group: int, ids_B: Int32Array) -> None:
        """These blocks of a group are free."""
        self._inner.discard_blocks(kv, group, ids_B)

    # attention

    def plan_attention(self, batch: AttentionBatch, stream: Stream) -> AttentionPlan:
        """The inner backend's plan, since its attention reads it."""
        return self._inner.plan_attention(batch, stream)

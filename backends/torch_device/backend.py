"""A backend made of parts: what a chip brings is its runtime, its providers, its KV and its plan of attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from isoinfer.backends.descriptor import DeviceInfo
from isoinfer.backends.interface import (
    AttentionBatch,
    AttentionPlan,
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
)
from isoinfer.backends.ops import DenseWeight, OpSpec
from isoinfer.backends.provider import ProviderTable
from isoinfer.backends.torch_device.kv import PagedKVCache, PagedKVStore
from isoinfer.backends.torch_device.runtime import DeviceRuntime, copy_async

Planner = Callable[[AttentionBatch, Stream], AttentionPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDeviceBackend:
    """One device. `lines` is what `describe` says; `plan` works out an AttentionBatch."""

    name: str
    info: DeviceInfo
    capabilities: Capabilities
    collective_backend: str
    runtime: DeviceRuntime
    table: ProviderTable
    kv_store: PagedKVStore
    plan: Planner
    lines: tuple[str, ...]

    def describe(self) -> list[str]:
        """What was chosen at start."""
        return list(self.lines)

    # runtime

    def stream(self) -> Stream:
        """A stream of the device."""
        return self.runtime.stream()

    def event(self) -> Event:
        """An unrecorded event."""
        return self.runtime.event()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Device memory with undefined contents."""
        return self.runtime.empty(shape, dtype)

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Host memory that async copies may use."""
        return self.runtime.host_buffer(shape, dtype)

    def to_device(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream) -> None:
        """Copy host to device in stream order."""
        stream.launch(copy_async, dst, src)

    def to_host(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream) -> None:
        """Copy device to host in stream order."""
        stream.launch(copy_async, dst, src)

    def memory(self) -> MemoryInfo:
        """The device's memory."""
        return self.runtime.memory()

    def capture(self, fn: Callable[..., None], *args: Any, host_params: Sequence[str] = ()) -> Graph:
        """Record device work."""
        return self.runtime.capture(fn, *args, host_params=host_params)

    # ops

    def support(self, op: OpSpec, static: Any) -> Support:
        """What `bind` would do."""
        return self.table.support(op, static)

    def supports(self, op: OpSpec, static: Any) -> list[Support]:
        """Every provider's answer, in order."""
        return self.table.supports(op, static)

    def bind(self, op: OpSpec, static: Any) -> Callable[..., Any]:
        """The provider's own function."""
        return self.table.bind(op, static)

    def prepare_weight(self, role: str, tensor: torch.Tensor, quant: str | None) -> Any:
        """The tensor on the device; linears, embeddings and experts as `DenseWeight`."""
        assert quant is None, f"{self.name} declares no quantisation, so the engine asks for none: {quant}"
        placed = self.empty(tensor.shape, tensor.dtype)
        placed.copy_(tensor)
        return placed if role == "vector" else DenseWeight(placed)

    # kv

    def kv_layout(self, specs: Sequence[KVSpec]) -> KVLayout:
        """Block size and bytes of a block."""
        return self.kv_store.layout(specs)

    def allocate_kv(self, specs: Sequence[KVSpec], num_blocks: Sequence[int]) -> PagedKVCache:
        """Room for so many blocks of each group."""
        return self.kv_store.allocate(specs, num_blocks)

    def copy_blocks(self, kv: KVCache, group: int, src_B: Int32Array, dst_B: Int32Array, stream: Stream) -> None:
        """Copy blocks within every layer of a group, in stream order."""
        stream.launch(self.kv_store.copy, kv, group, src_B, dst_B)

    def export_blocks(self, kv: KVCache, layer: int, ids_B: Int32Array) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V on the host as `[B, S, K, D]`."""
        return self.kv_store.export(kv, layer, ids_B)

    def import_blocks(
        self, kv: KVCache, layer: int, ids_B: Int32Array, k_BSKD: torch.Tensor, v_BSKD: torch.Tensor
    ) -> None:
        """The inverse of `export_blocks`."""
        self.kv_store.store(kv, layer, ids_B, k_BSKD, v_BSKD)

    def discard_blocks(self, kv: KVCache, group: int, ids_B: Int32Array) -> None:
        """Nothing to do: contents of free blocks are never read."""

    def plan_attention(self, batch: AttentionBatch, stream: Stream) -> AttentionPlan:
        """The chip's own plan."""
        return self.plan(batch, stream)

    def bind_model(self, spec: ModelSpec) -> Forward | None:
        """Op by op."""
        return None

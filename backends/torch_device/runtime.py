"""What a backend asks of a torch device: streams, events, memory and graphs.

`StreamRuntime` drives a real one through its torch module (`torch.cuda`, `torch.npu`: both have the same
names). `HostRuntime` stands in where kernels are interpreted or a chip's operators are emulated: host
tensors, the CPU's inline stream. Tests and `explain --assume` use it; a real device never does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from isoinfer.backends.cpu.probe import probe_host
from isoinfer.backends.cpu.runtime import CpuEvent, InlineStream, RecordedGraph
from isoinfer.backends.interface import Event, Graph, MemoryInfo, Stream

HostCapture = Callable[["HostRuntime", Callable[..., None], tuple[Any, ...], frozenset[str]], Graph]


class DeviceRuntime(Protocol):
    """The runtime group of a backend."""

    @property
    def device(self) -> torch.device: ...
    def stream(self) -> Stream: ...
    def event(self) -> Event: ...
    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor: ...
    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor: ...
    def memory(self) -> MemoryInfo: ...
    def capture(self, fn: Callable[..., None], *args: Any, host_params: Sequence[str] = ()) -> Graph: ...


def copy_async(dst: torch.Tensor, src: torch.Tensor) -> None:
    """A copy to launch on a stream: it does not make the host wait where the host's side is pinned."""
    dst.copy_(src, non_blocking=True)


class HostRuntime:
    """Host memory and an inline stream, under the same contract. `capture`: how an emulated chip records graphs."""

    def __init__(self, device: torch.device | None = None, capture: HostCapture | None = None) -> None:
        self.device, self._capture = device or torch.device("cpu"), capture

    def stream(self) -> Stream:
        """Work runs at launch."""
        return InlineStream()

    def event(self) -> Event:
        """An unrecorded event."""
        return CpuEvent()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory with undefined contents."""
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Ordinary memory: there is nothing to pin for."""
        return torch.empty(tuple(shape), dtype=dtype)

    def memory(self) -> MemoryInfo:
        """The host's memory."""
        host = probe_host()
        return MemoryInfo(
            total=host.memory_total, free=host.memory_free, kv_default=min(1 << 30, host.memory_free // 4)
        )

    def capture(self, fn: Callable[..., None], *args: Any, host_params: Sequence[str] = ()) -> Graph:
        """A recorded callable, unless the chip that is emulated has graphs of its own."""
        if self._capture is not None:
            return self._capture(self, fn, args, frozenset(host_params))
        return RecordedGraph(fn, args, frozenset(host_params))

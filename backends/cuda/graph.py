"""CUDA graphs: device work recorded once and replayed at the addresses it was recorded with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from isoinfer.backends.torch_device.stream_runtime import StreamRuntime

WARMUPS = 2
"""Runs before the recording: kernels compile and libraries allocate their workspaces outside of it."""


class CudaGraph:
    """A recorded callable. CUDA kernels read everything that changes from device tensors, so replay takes nothing."""

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self._graph = graph

    def replay(self, host_params: dict[str, Any]) -> None:
        """Run again on the current stream. Any host parameter is an error: a graph could only ignore it."""
        if host_params:
            raise ValueError(f"a CUDA graph takes no host parameters, got {sorted(host_params)}")
        self._graph.replay()


class GraphCapture:
    """Captures graphs that share one memory pool; they never run at the same time."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(
        self, runtime: StreamRuntime, fn: Callable[..., None], args: tuple[Any, ...], host_params: frozenset[str]
    ) -> CudaGraph:
        """Warm up on a stream of its own, then record."""
        if host_params:
            raise ValueError(f"CUDA attention reads no host parameters, so a graph takes none: {sorted(host_params)}")
        side = torch.cuda.Stream(runtime.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(runtime.device))
        with torch.cuda.stream(side):
            for _ in range(WARMUPS):
                fn(*args)
        torch.cuda.current_stream(runtime.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=side):
            fn(*args)
        self._pool = self._pool or graph.pool()
        return CudaGraph(graph)

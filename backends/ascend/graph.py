"""NPU graphs. An operator that reads lengths from host lists keeps those of the capture until it is updated.

`replay` owns the order, so that nobody can run a graph with the lengths of another step:
1. the update waits, on the device, for everything enqueued before, since rewriting a task that a running
   replay has yet to reach gives wrong results;
2. every recorded operator is given this step's lists, on the update stream;
3. the graph is launched; each recorded operator waits on the device for its own update.
torch_npu ignores a name it does not know and keeps the old value of one that is missing; both raise here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isoinfer.backends.torch_device.runtime import DeviceRuntime
from isoinfer.errors import BackendError

WARMUPS = 2
"""Runs before the recording: kernels compile and libraries allocate their workspaces outside of it."""
NO_STREAMS = "207008"
"""CANN's error where the device has no stream resources left for a capture."""


class AscendGraph:
    """A recorded callable. `names`: the host parameters that its operators read."""

    def __init__(self, npu: Any, graph: Any, names: frozenset[str]) -> None:
        self._npu, self._graph, self._names = npu, graph, names
        self._reads_host = bool(graph.graph_dispatch_mode.graph_dispatch_records)

    def replay(self, host_params: dict[str, Any]) -> None:
        """Run again on the current stream with this step's lists. ValueError for a missing or unknown name."""
        if set(host_params) != self._names:
            raise ValueError(f"graph replay takes exactly {sorted(self._names)}, got {sorted(host_params)}")
        if self._reads_host:
            self._graph.graph_dispatch_mode.update_stream.wait_stream(self._npu.current_stream())
            self._graph.update(cpu_update_input=[dict(host_params)])
        self._graph.replay()


class GraphCapture:
    """Captures graphs that share one memory pool. `npu`: `torch.npu`. `limit`: graphs that its streams suffice for."""

    def __init__(self, npu: Any, limit: int) -> None:
        self._npu, self._limit = npu, limit
        self._pool: Any = None
        self._count = 0
        self._active = False

    def is_capturing(self) -> bool:
        """Whether a recording is in progress."""
        return self._active

    def __call__(
        self, runtime: DeviceRuntime, fn: Callable[..., None], args: tuple[Any, ...], host_params: frozenset[str]
    ) -> AscendGraph:
        """Warm up, then record `fn(*args)`. BackendError where the device cannot hold another graph."""
        if self._count >= self._limit:
            raise BackendError(f"this device holds {self._limit} graphs, and all are taken{ADVICE}")
        stream = self._npu.Stream()
        stream.wait_stream(self._npu.current_stream())
        graph = self._npu.NPUGraph()
        with self._npu.stream(stream):
            for _ in range(WARMUPS):
                fn(*args)
        try:
            self._record(graph, stream, fn, args)
        except RuntimeError as error:
            if NO_STREAMS not in str(error):
                raise
            raise BackendError(f"the device has no streams left for graph {self._count + 1}{ADVICE}") from error
        self._npu.current_stream().wait_stream(stream)
        _check_names(graph, host_params)
        self._count += 1
        return AscendGraph(self._npu, graph, host_params)

    def _record(self, graph: Any, stream: Any, fn: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._pool = self._pool or self._npu.graph_pool_handle()
        self._active = True
        try:
            with self._npu.graph(graph, pool=self._pool, stream=stream, auto_dispatch_capture=True):
                fn(*args)
        finally:
            self._active = False


ADVICE = "; lower max_num_seqs, so that there are fewer batch sizes, or run with enforce_eager"


def _check_names(graph: Any, names: frozenset[str]) -> None:
    """Every operator that was recorded for updates must take every name, or its update would be ignored."""
    for record in graph.graph_dispatch_mode.graph_dispatch_records:
        if missing := sorted(names - set(record.kwargs)):
            raise ValueError(f"a recorded operator takes no {', '.join(missing)}: its lengths could not be updated")
        if not names:
            raise ValueError("a recorded operator reads lengths from the host, but no host parameter was named")

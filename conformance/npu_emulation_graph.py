"""Graphs as torch_npu makes them, emulated: a replay runs the recorded operators with the recorded lists.

Faithful in what hurts: an update with an unknown name changes nothing, and a replay without an update runs
with old lengths. Stricter than a device in one point: an update that could overtake a running replay raises.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from isoinfer.conformance.npu_emulation_rules import require


@dataclass(slots=True, kw_only=True)
class Task:
    """One recorded call and the tensors that it fills."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any

    def run(self) -> None:
        """Again, into the recorded outputs. Views and arguments need no copy."""
        inputs = {_storage(leaf) for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)}
        for old, new in zip(tree_leaves(self.out), tree_leaves(self.fn(*self.args, **self.kwargs)), strict=True):
            if isinstance(old, torch.Tensor) and _storage(old) not in inputs:
                old.copy_(new)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records everything that torch and the emulated operators do while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph: NPUGraph | None = None

    @contextmanager
    def recording(self, graph: NPUGraph) -> Iterator[None]:
        """Record into `graph`."""
        self._graph = graph
        try:
            with self:
                yield
        finally:
            self._graph = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A torch operator: run and keep."""
        assert self._graph is not None
        out = func(*args, **(kwargs or {}))
        self._graph.tasks.append(Task(fn=func, args=args, kwargs=kwargs or {}, out=out))
        return out

    def run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An emulated operator: one task, however many torch operators it is made of."""
        if self._graph is None:
            return fn(*args, **kwargs)
        with _disable_current_modes():
            out = fn(*args, **kwargs)
        kept = {name: value if isinstance(value, torch.Tensor) else copy.copy(value) for name, value in kwargs.items()}
        task = Task(fn=fn, args=args, kwargs=kept, out=out)
        self._graph.tasks.append(task)
        if "actual_seq_kvlen" in kwargs:
            self._graph.graph_dispatch_mode.graph_dispatch_records.append(task)
        return out


class EmulatedStream:
    """A stream that is always idle. `waited` counts: an update may only follow a wait."""

    def __init__(self) -> None:
        self.waited = 0

    def wait_stream(self, other: EmulatedStream) -> None:
        """Order after `other`."""
        self.waited += 1


@dataclass(slots=True)
class DispatchMode:
    """What torch_npu hangs on a graph: operators with host lists, and the stream that updates them."""

    graph_dispatch_records: list[Task] = field(default_factory=list)
    update_stream: EmulatedStream = field(default_factory=EmulatedStream)


class NPUGraph:
    """The recorded tasks."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.graph_dispatch_mode = DispatchMode()
        self._waits_seen = 0
        self._replayed = False

    def update(self, cpu_update_input: list[dict[str, Any]]) -> None:
        """Give operators new lists. Names that an operator has not are ignored, as on a device."""
        mode = self.graph_dispatch_mode
        behind = mode.update_stream.waited > self._waits_seen
        require(behind or not self._replayed, "an update must wait for the replay before it")
        self._waits_seen = mode.update_stream.waited
        for task in mode.graph_dispatch_records:
            task.kwargs |= {name: value for name, value in cpu_update_input[0].items() if name in task.kwargs}

    def replay(self) -> None:
        """Run the tasks in order."""
        self._replayed = True
        with torch.inference_mode():
            for task in self.tasks:
                task.run()


class EmulatedModule:
    """What graphs ask of `torch.npu`. `capacity`: captures before the device has no streams left."""

    Stream = EmulatedStream

    def __init__(self, recorder: Recorder, capacity: int = 1 << 16) -> None:
        self._recorder, self._current = recorder, EmulatedStream()
        self._left = capacity
        self.NPUGraph = NPUGraph

    def current_stream(self) -> EmulatedStream:
        """The only one."""
        return self._current

    def graph_pool_handle(self) -> object:
        """A token."""
        return object()

    @contextmanager
    def stream(self, stream: EmulatedStream) -> Iterator[None]:
        """Nothing to switch."""
        yield

    @contextmanager
    def graph(
        self, graph: NPUGraph, pool: object, stream: EmulatedStream, auto_dispatch_capture: bool
    ) -> Iterator[None]:
        """Record. RuntimeError with CANN's number where the streams are used up."""
        assert auto_dispatch_capture, "without it nothing can be updated"
        if not self._left:
            raise RuntimeError("NPU function error: aclmdlRICaptureBegin, error code is 207008")
        self._left -= 1
        with self._recorder.recording(graph):
            yield

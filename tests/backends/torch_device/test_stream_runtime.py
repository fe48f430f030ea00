"""The contract of errors on a real device's runtime, over a torch module that only keeps books."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
import torch

from isoinfer.backends.torch_device.stream_runtime import StreamRuntime
from isoinfer.errors import BackendError, DeviceLost, StepError


class BookStream:
    def __init__(self, device: torch.device) -> None:
        self.waited: list[Any] = []

    def wait_event(self, event: Any) -> None:
        self.waited.append(event)

    def synchronize(self) -> None: ...


class BookEvent:
    lost = False

    def record(self, stream: BookStream) -> None:
        self.stream = stream

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        if self.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


class BookModule:
    """The names that StreamRuntime uses of torch.cuda."""

    Stream, Event = BookStream, BookEvent

    def __init__(self) -> None:
        self.current: list[BookStream] = []

    def set_device(self, device: torch.device) -> None: ...

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return 3 << 30, 8 << 30

    @contextmanager
    def stream(self, raw: BookStream) -> Any:
        self.current.append(raw)
        yield
        self.current.pop()


@pytest.fixture
def runtime() -> StreamRuntime:
    return StreamRuntime(BookModule(), torch.device("cpu"), lambda *args: args)  # type: ignore[arg-type,return-value]


def test_work_runs_on_the_stream(runtime: StreamRuntime) -> None:
    stream, seen = runtime.stream(), []
    stream.launch(lambda: seen.append(runtime.module.current[-1]))
    assert seen == [stream.raw]
    assert runtime.module.current == []


def test_a_failure_skips_the_rest_of_its_step_and_surfaces_at_its_event(runtime: StreamRuntime) -> None:
    stream, ran = runtime.stream(), []
    stream.launch(lambda: 1 / 0)
    stream.launch(ran.append, 1)
    first, second = runtime.event(), runtime.event()
    first.record(stream)
    stream.launch(ran.append, 2)
    second.record(stream)
    with pytest.raises(StepError, match="ZeroDivisionError: division by zero"):
        first.synchronize()
    second.synchronize()
    assert ran == [2]


def test_an_error_of_the_device_is_device_lost(runtime: StreamRuntime) -> None:
    event = runtime.event()
    event.record(runtime.stream())
    event.raw.lost = True
    with pytest.raises(DeviceLost, match="illegal memory access"):
        event.synchronize()


def test_streams_wait_for_events_on_the_device(runtime: StreamRuntime) -> None:
    stream, event = runtime.stream(), runtime.event()
    stream.wait(event)
    assert stream.raw.waited == [event.raw]


def test_out_of_memory_names_the_sizes(runtime: StreamRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(
        BackendError, match=r"4\.00 GiB more were asked for, 3\.00 of 8\.00 GiB are free; use a smaller"
    ):
        runtime.empty((1 << 30,), torch.float32)


def test_memory_leaves_room_for_activations(runtime: StreamRuntime) -> None:
    memory = runtime.memory()
    assert (memory.total, memory.free) == (8 << 30, 3 << 30)
    assert memory.kv_default == (3 << 30) * 9 // 10


def test_capture_is_the_vendors(runtime: StreamRuntime) -> None:
    assert runtime.capture(print, 1, host_params=("a",)) == (runtime, print, (1,), frozenset({"a"}))

"""The CPU's streams, events and graphs: real ones, so that the core's ordering is exercised without a chip.

`InlineStream` runs work at launch; `ThreadStream` runs it in order on a thread of its own. Both keep the
contract of errors: after a failure, work up to the next recorded event is skipped, and that event raises.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from isoinfer.backends.interface import Event, Stream
from isoinfer.errors import StepError


class CpuStream(Stream, Protocol):
    """What both kinds of stream offer to events besides the seam's contract."""

    def submit_record(self, event: CpuEvent) -> None: ...


class CpuEvent:
    """A point in a stream. Unrecorded events count as done."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._done.set()
        self._error: BaseException | None = None

    def record(self, stream: Stream) -> None:
        """Mark the stream's current end."""
        assert isinstance(stream, InlineStream | ThreadStream), type(stream)
        self._done.clear()
        self._error = None
        stream.submit_record(self)

    def query(self) -> bool:
        """Whether all work before the mark is done."""
        return self._done.is_set()

    def synchronize(self) -> None:
        """Wait on the host. StepError if work between the previous event and this one failed."""
        self._done.wait()
        if self._error is not None:
            raise StepError(f"{type(self._error).__name__}: {self._error}") from self._error

    def complete(self, error: BaseException | None) -> None:
        """Called by the stream when it reaches the mark."""
        self._error = error
        self._done.set()

    def wait_done(self) -> None:
        """Wait without raising: ordering between streams must not move an error to the wrong place."""
        self._done.wait()


class InlineStream:
    """Work runs at launch, on the caller's thread."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def launch(self, fn: Callable[..., None], *args: Any) -> None:
        """Run now, unless earlier work of this step failed."""
        if self._error is not None:
            return
        try:
            fn(*args)
        except Exception as error:
            self._error = error

    def wait(self, event: Event) -> None:
        """Order after another stream's event."""
        _own(event).wait_done()

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def submit_record(self, event: CpuEvent) -> None:
        """The mark is reached at once."""
        error, self._error = self._error, None
        event.complete(error)


class ThreadStream:
    """Work runs in order on one worker thread with `threads` intra-op threads of torch's.

    Two busy teams on few cores ruin each other, so the backend gives this worker one core less than the
    host has and the launching thread does no parallel torch work.
    """

    def __init__(self, threads: int) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._inner = InlineStream()  # what the worker does with an item, and the rule of errors
        self._worker = threading.Thread(
            target=_serve, args=(self._work, threads), name="isoinfer-cpu-stream", daemon=True
        )
        self._worker.start()
        self._end = weakref.finalize(self, self._work.put, None)  # a stream that nobody holds ends its thread

    def launch(self, fn: Callable[..., None], *args: Any) -> None:
        """Enqueue and return at once."""
        self._work.put(partial(self._inner.launch, fn, *args))

    def wait(self, event: Event) -> None:
        """Order later work of this stream after the event; the host does not wait."""
        self._work.put(_own(event).wait_done)

    def synchronize(self) -> None:
        """Make the host wait for all work so far."""
        reached = threading.Event()
        self._work.put(reached.set)
        reached.wait()

    def submit_record(self, event: CpuEvent) -> None:
        """Mark the end of what is enqueued."""
        self._work.put(partial(self._inner.submit_record, event))

    def close(self) -> None:
        """Finish what is enqueued and end the worker."""
        self._end()
        self._worker.join()


def _serve(work: queue.SimpleQueue[Callable[[], None] | None], threads: int) -> None:
    """The worker: it knows the queue and not the stream, so that the stream can be collected."""
    torch.set_num_threads(threads)
    with torch.inference_mode():
        while (item := work.get()) is not None:
            item()
            del item  # it holds a step's tensors


def _own(event: Event) -> CpuEvent:
    assert isinstance(event, CpuEvent), type(event)
    return event


class RecordedGraph:
    """A capture on the CPU: the callable itself, replayed with host parameters among those it names."""

    def __init__(self, fn: Callable[..., None], args: tuple[Any, ...], host_params: frozenset[str]) -> None:
        self._fn, self._args, self._names = fn, args, host_params

    def replay(self, host_params: dict[str, Any]) -> None:
        """Run again. Missing or unknown parameter names are an error, never ignored."""
        if set(host_params) != self._names:
            raise ValueError(f"graph replay takes exactly {sorted(self._names)}, got {sorted(host_params)}")
        self._fn(*self._args, **host_params)

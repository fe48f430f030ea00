"""Streams and events of both kinds: order, where errors surface, and that the thread is one."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from isoinfer.backends.cpu.runtime import CpuEvent, InlineStream, RecordedGraph, ThreadStream
from isoinfer.errors import StepError

PATIENCE_S = 20


@pytest.fixture(params=["inline", "thread"])
def stream(request: pytest.FixtureRequest) -> Any:
    return InlineStream() if request.param == "inline" else ThreadStream(1)


@pytest.fixture
def thread_stream() -> ThreadStream:
    return ThreadStream(1)


def fail(message: str = "broken") -> None:
    raise ValueError(message)


def mark(stream: Any) -> CpuEvent:
    event = CpuEvent()
    event.record(stream)
    return event


def test_work_runs_in_order_with_its_arguments(stream: Any) -> None:
    seen: list[int] = []
    for value in range(50):
        stream.launch(seen.append, value)
    stream.synchronize()
    assert seen == list(range(50))


def test_an_unrecorded_event_is_done() -> None:
    event = CpuEvent()
    assert event.query()
    event.synchronize()


def test_an_error_surfaces_at_the_next_event_and_what_follows_it_is_skipped(stream: Any) -> None:
    seen: list[str] = []
    before = mark(stream)
    stream.launch(seen.append, "before")
    stream.launch(fail)
    stream.launch(seen.append, "skipped")
    broken = mark(stream)
    stream.launch(seen.append, "after")
    healthy = mark(stream)
    before.synchronize()
    with pytest.raises(StepError, match="ValueError: broken") as caught:
        broken.synchronize()
    assert isinstance(caught.value.__cause__, ValueError)
    assert broken.query()
    healthy.synchronize()
    assert seen == ["before", "after"]


def test_the_first_error_of_a_step_is_the_one_reported(stream: Any) -> None:
    stream.launch(fail, "first")
    stream.launch(fail, "second")
    with pytest.raises(StepError, match="first"):
        mark(stream).synchronize()


def test_an_event_recorded_again_forgets_the_error(stream: Any) -> None:
    stream.launch(fail)
    event = mark(stream)
    with pytest.raises(StepError):
        event.synchronize()
    event.record(stream)
    event.synchronize()


def test_synchronizing_the_stream_takes_no_error_away(stream: Any) -> None:
    stream.launch(fail)
    stream.synchronize()
    with pytest.raises(StepError):
        mark(stream).synchronize()


def test_waiting_for_another_stream_does_not_move_its_error(stream: Any) -> None:
    other = ThreadStream(1)
    other.launch(fail)
    broken = mark(other)
    seen: list[str] = []
    stream.wait(broken)
    stream.launch(seen.append, "ran")
    mark(stream).synchronize()
    assert seen == ["ran"]
    with pytest.raises(StepError):
        broken.synchronize()


def test_the_thread_is_asynchronous(thread_stream: ThreadStream) -> None:
    gate, seen = threading.Event(), []
    thread_stream.launch(gate.wait, PATIENCE_S)
    thread_stream.launch(lambda: seen.append(threading.current_thread()))
    event = mark(thread_stream)
    # All of this returned although nothing can have run: the gate is closed.
    assert not event.query()
    assert seen == []
    gate.set()
    event.synchronize()
    assert event.query()
    assert seen[0] is not threading.current_thread()


def test_a_stream_waits_for_an_event_without_making_the_host_wait(thread_stream: ThreadStream) -> None:
    other, gate, seen = ThreadStream(1), threading.Event(), []
    other.launch(gate.wait, PATIENCE_S)
    other.launch(seen.append, "other")
    thread_stream.wait(mark(other))
    thread_stream.launch(seen.append, "mine")
    event = mark(thread_stream)
    assert not event.query()
    gate.set()
    event.synchronize()
    assert seen == ["other", "mine"]


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "isoinfer-cpu-stream"}


def test_close_finishes_the_work_and_ends_the_thread() -> None:
    before, seen = workers(), []
    stream = ThreadStream(1)
    (worker,) = workers() - before
    for value in range(20):
        stream.launch(seen.append, value)
    stream.close()
    worker.join(PATIENCE_S)
    assert seen == list(range(20))
    assert not worker.is_alive()


def test_a_stream_that_nobody_holds_ends_its_thread() -> None:
    before = workers()
    stream = ThreadStream(1)
    (worker,) = workers() - before
    del stream
    gc.collect()
    worker.join(PATIENCE_S)
    assert not worker.is_alive()


def test_a_graph_replays_with_exactly_its_host_parameters() -> None:
    seen: list[Any] = []

    def work(fixed: int, *, length: int, slot: int) -> None:
        seen.append((fixed, length, slot))

    graph = RecordedGraph(work, (7,), frozenset({"length", "slot"}))
    graph.replay({"length": 1, "slot": 2})
    graph.replay({"slot": 4, "length": 3})
    for wrong in ({}, {"length": 1}, {"length": 1, "slot": 2, "width": 3}, {"lenght": 1, "slot": 2}):
        with pytest.raises(ValueError, match=r"takes exactly \['length', 'slot'\]"):
            graph.replay(wrong)
    assert seen == [(7, 1, 2), (7, 3, 4)]


def test_both_kinds_come_from_the_option(open_backend: Any) -> None:
    assert isinstance(open_backend(native="off").stream(), InlineStream)
    assert isinstance(open_backend(native="off", stream="thread").stream(), ThreadStream)

"""Order, laziness and errors of the simulated queues."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.errors import StepError


def test_nothing_runs_before_somebody_waits(make_backend):
    backend, log = make_backend(), []
    stream, event = backend.stream(), backend.event()
    stream.launch(log.append, 1)
    event.record(stream)
    stream.launch(log.append, 2)
    assert log == []
    event.synchronize()
    assert log == [1]
    stream.synchronize()
    assert log == [1, 2]


def test_an_eager_stream_runs_at_launch(make_backend):
    backend, log = make_backend(stream="eager"), []
    stream = backend.stream()
    stream.launch(log.append, 1)
    assert log == [1]


def test_copies_read_the_host_late_and_land_late(make_backend):
    backend = make_backend()
    stream, event = backend.stream(), backend.event()
    source, target, back = (backend.empty((2,), torch.int32) for _ in range(3))
    source.fill_(1)
    back.fill_(0)
    backend.to_device(target, source, stream)
    backend.to_host(back, target, stream)
    event.record(stream)
    source.fill_(2)  # too early: the staging buffer is still in use
    assert back.tolist() == [0, 0]
    event.synchronize()
    assert back.tolist() == [2, 2]


def test_new_memory_holds_garbage(make_backend):
    backend = make_backend()
    assert backend.empty((2,), torch.int32).tolist() == [0x7B7B7B7B] * 2
    assert backend.empty((1,), torch.float32).isnan().all()
    assert backend.empty((1,), torch.bool).all()


def test_an_unrecorded_event_is_done(make_backend):
    event = make_backend().event()
    assert event.query()
    event.synchronize()


def fail():
    raise ValueError("no")


def test_a_failure_skips_up_to_the_next_event_and_surfaces_there_alone(make_backend):
    for options in ({}, {"stream": "eager"}):
        backend, log = make_backend(**options), []
        stream, before, first, second = backend.stream(), backend.event(), backend.event(), backend.event()
        before.record(stream)
        stream.launch(fail)
        stream.launch(log.append, "skipped")
        first.record(stream)
        stream.launch(log.append, "runs")
        second.record(stream)
        second.synchronize()
        assert log == ["runs"]
        before.synchronize()
        for _ in range(2):
            with pytest.raises(StepError, match="ValueError: no"):
                first.synchronize()


def test_a_stream_that_waits_for_an_event_comes_after_it(make_backend):
    backend, log = make_backend(), []
    a, b, ready, end = backend.stream(), backend.stream(), backend.event(), backend.event()
    a.launch(log.append, "a1")
    ready.record(a)
    a.launch(log.append, "a2")
    b.launch(log.append, "b1")
    b.wait(ready)
    b.launch(log.append, "b2")
    end.record(b)
    end.synchronize()
    assert log == ["b1", "a1", "b2"]  # a2 is nobody's business yet
    a.synchronize()
    assert log == ["b1", "a1", "b2", "a2"]


def test_waiting_takes_the_event_as_it_was_recorded(make_backend):
    backend, log = make_backend(), []
    a, b, event = backend.stream(), backend.stream(), backend.event()
    b.wait(event)  # unrecorded: nothing to wait for
    event.record(a)
    b.wait(event)
    a.launch(log.append, "a")
    event.record(a)
    b.synchronize()
    assert log == []


def test_errors_stay_with_their_stream(make_backend):
    backend, log = make_backend(), []
    a, b, on_a, on_b = backend.stream(), backend.stream(), backend.event(), backend.event()
    a.launch(fail)
    on_a.record(a)
    b.wait(on_a)
    b.launch(log.append, 1)
    on_b.record(b)
    on_b.synchronize()
    assert log == [1]
    with pytest.raises(StepError):
        on_a.synchronize()


def test_completion_may_be_told_late(make_backend):
    backend = make_backend(max_polls=3, seed=5)
    stream, polls = backend.stream(), set()
    for _ in range(40):
        event, count = backend.event(), 0
        event.record(stream)
        while not event.query():
            count += 1
        polls.add(count)
    assert polls == {0, 1, 2, 3}


@settings(max_examples=60, deadline=None)
@given(
    actions=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["launch", "record", "wait"])), max_size=40),
    seed=st.integers(0, 1000),
    rate=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_whatever_runs_early_order_is_kept(make_backend, actions, seed, rate):
    backend, log = make_backend(early_rate=rate, seed=seed), []
    streams = [backend.stream() for _ in range(3)]
    event, recorded = backend.event(), []
    after: dict[int, list[int]] = {}
    launched: list[list[int]] = [[], [], []]
    waits: list[list[int]] = [[], [], []]
    for number, (index, action) in enumerate(actions):
        if action == "launch":
            after[number] = [*launched[index], *waits[index]]
            streams[index].launch(log.append, number)
            launched[index].append(number)
        elif action == "record":
            event.record(streams[index])
            recorded = [*launched[index], *waits[index]]
        else:
            streams[index].wait(event)
            waits[index] += recorded
    for stream in streams:
        stream.synchronize()
    place = {number: position for position, number in enumerate(log)}
    assert sorted(place) == sorted(after)
    assert all(place[first] < place[number] for number, firsts in after.items() for first in firsts)

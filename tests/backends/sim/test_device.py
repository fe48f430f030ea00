"""The device's times: one round ahead hides the host, one at a time does not."""

from __future__ import annotations

import time

import pytest

STEP_MS, HOST_US = 4, 2000


def run(driver, row, depth, rounds=40):
    """Rounds of one row with `depth` steps in flight."""
    pending = []
    for position in range(rounds):
        event = driver.backend.event()
        driver.launch(row(tokens=(5,), start=position, tables=(tuple(range(1, 30)),)), event=event)
        pending.append(event)
        if len(pending) == depth:
            pending.pop(0).synchronize()
    for event in pending:
        event.synchronize()
    return driver.backend.times()


@pytest.mark.parametrize("stream", ["lazy", "eager"])
def test_overlap_hides_the_host(make_driver, row, stream):
    one, two = (run(make_driver(None, step_ms=STEP_MS, host_us=HOST_US, stream=stream), row, depth) for depth in (1, 2))
    assert one.rounds == two.rounds == one.rows == one.tokens == 40
    assert one.span_s == pytest.approx(40 * 0.004 + 39 * 0.002)
    assert one.idle_fraction == pytest.approx(1 / 3, abs=0.01)
    assert one.exposed_us_p50 == pytest.approx(2000)
    assert two.span_s == pytest.approx(40 * 0.004)
    assert two.exposed_us_p99 == pytest.approx(0, abs=1e-3)
    assert one.host_s == pytest.approx(40 * 0.002)


def test_a_slow_host_is_seen_at_any_depth(make_driver, row):
    report = run(make_driver(None, step_ms=1, host_us=3000), row, 2)
    assert report.idle_fraction == pytest.approx(2 / 3, abs=0.03)


def test_a_real_clock_takes_real_time(make_driver, row):
    started = time.perf_counter()
    report = run(make_driver(None, step_ms=2, clock="real"), row, 2, rounds=10)
    assert time.perf_counter() - started >= 0.02
    assert report.busy_s == pytest.approx(0.02)
    assert report.span_s >= 0.02 - 1e-6


def test_events_are_done_when_the_clock_says_so(make_driver, row):
    driver = make_driver(None, step_ms=1000, host_us=0)
    event = driver.backend.event()
    driver.launch(row(tokens=(5,), start=0, tables=((1,),)), event=event)
    assert not event.query()
    event.synchronize()
    assert event.query()
    assert driver.backend.now() == pytest.approx(1.0)


def test_work_waits_for_its_launch_and_for_other_streams(make_driver, row):
    driver = make_driver(None, step_ms=1000, host_us=0)
    other, ready, end = driver.backend.stream(), driver.backend.event(), driver.backend.event()
    driver.launch(row(tokens=(5,), start=0, tables=((1,),)), event=ready)
    other.wait(ready)
    other.launch(lambda: None)
    end.record(other)
    end.synchronize()
    assert driver.backend.now() == pytest.approx(1.0)


def test_what_the_simulation_computes_is_not_the_hosts_time(make_backend):
    backend = make_backend()
    stream, start = backend.stream(), backend.now()

    def burn():
        end = time.thread_time() + 0.03
        while time.thread_time() < end:
            pass

    stream.launch(burn)
    stream.synchronize()
    assert backend.now() - start < 0.015


def test_nothing_has_run_yet(make_backend):
    report = make_backend().times()
    assert (report.rounds, report.busy_s, report.span_s, report.idle_fraction) == (0, 0, 0, 0)

"""Simulated time: what is waited, what is left out, and what a round of the host costs."""

from __future__ import annotations

import time

import pytest

from isoinfer.backends.sim.clock import RealClock, VirtualClock


def test_a_priced_host_takes_time_only_by_rounds_and_waiting():
    clock = VirtualClock(host_us=200)
    assert clock.now() == 0
    clock.wait_until(0.5)
    clock.wait_until(0.25)  # already past
    clock.leave_out(3)
    clock.settle_round()
    assert clock.now() == pytest.approx(0.5002)
    assert clock.waited == 0.5


def test_a_measured_host_counts_its_threads_time_less_what_is_left_out():
    clock = VirtualClock()
    start, own = clock.now(), time.thread_time()
    time.sleep(0.02)  # as if the machine were busy with something else
    while time.thread_time() < own + 0.01:
        pass
    clock.leave_out(0.004)
    clock.wait_until(start + 100)
    assert clock.now() >= start + 100
    clock.settle_round()
    passed = clock.now() - start - clock.waited
    assert 0.006 <= passed <= time.thread_time() - own - 0.004 + 1e-3
    assert passed < 0.015


def test_a_real_clock_sleeps():
    clock = RealClock()
    start = time.perf_counter()
    clock.wait_until(start + 0.02)
    assert time.perf_counter() >= start + 0.02
    assert 0 < clock.waited <= 0.02
    clock.leave_out(100)
    clock.settle_round()
    assert clock.now() == pytest.approx(time.perf_counter(), abs=0.1)

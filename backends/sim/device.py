"""The simulated device itself: runs its streams' work, counts rounds and keeps their times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from isoinfer.backends.sim.clock import Clock, RealClock, VirtualClock
from isoinfer.backends.sim.faults import Fault
from isoinfer.backends.simulated import SimulatedTimes
from isoinfer.errors import DeviceLost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isoinfer.backends.interface import ModelSpec
    from isoinfer.backends.sim.cost import Cost
    from isoinfer.backends.sim.options import SimOptions
    from isoinfer.backends.sim.reading import Reading
    from isoinfer.backends.sim.stream import Mark, SimStream


class InjectedFault(RuntimeError):
    """A step failed because it was told to."""


class SimDevice:
    """One device and its clock. Not thread-safe: one host thread drives it."""

    def __init__(self, options: SimOptions, cost: Cost) -> None:
        self._faults, self._cost = options.faults, cost
        self.clock: Clock = RealClock() if options.clock == "real" else VirtualClock(options.host_us)
        self._eager = options.stream == "eager"
        self._spent: float | None = None
        self._is_lost = False
        self._num_items = self._num_events = self._num_begun = self._num_settled = 0
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._num_rows = self._num_tokens = 0
        self._began = self.clock.now()

    # running work

    def run(self, stream: SimStream, mark: Mark | None, at_most: int = -1) -> None:
        """Run a stream up to a mark. The host's clock leaves it out."""
        started = time.thread_time()
        with torch.inference_mode():
            stream.run_until(mark, at_most)
        self.clock.leave_out(time.thread_time() - started)

    def run_early(self, stream: SimStream, waiting: int) -> None:
        """Something was enqueued: run some of it now, if this device does so."""
        self._num_items += 1
        count = waiting if self._eager else self._faults.items_run_early(self._num_items, waiting)
        if count:
            self.run(stream, None, count)

    def wait_for(self, mark: Mark) -> None:
        """Run and wait up to a mark."""
        self.run(mark.stream, mark)
        self.clock.wait_until(mark.moment)
        for _ in range(mark.rounds - self._num_settled):
            self.clock.settle_round()
        self._num_settled = max(self._num_settled, mark.rounds)

    def polls_of_next_event(self) -> int:
        """How often the next event says no although it is done."""
        self._num_events += 1
        return self._faults.polls(self._num_events)

    # called by the model while it runs

    def begin_forward(self) -> Fault:
        """Count a step: what is to happen to it. DeviceLost if the device is, or is now."""
        self._num_begun += 1
        fault = self._faults.of_step(self._num_begun)
        self._is_lost |= fault is Fault.LOST
        if self._is_lost:
            raise DeviceLost("the simulated device was told to be lost")
        return fault

    def spend(self, spec: ModelSpec, readings: Sequence[Reading]) -> None:
        """The running step takes the time that it costs."""
        self._spent = self._cost.seconds(spec, readings)
        self._num_rows += readings[0].rows.num_rows
        self._num_tokens += readings[0].rows.row_T.size

    def fail(self, fault: Fault) -> None:
        """Fail the step."""
        raise InjectedFault(f"step {self._num_begun} was told to fail {fault.value}")

    def take_spent(self, start: float) -> float:
        """What the item that just ran has cost; it started at `start`. Forwards cost, all else is free."""
        if self._spent is None:
            return 0.0
        spent, self._spent = self._spent, None
        self._starts.append(start)
        self._ends.append(start + spent)
        return spent

    # figures

    @property
    def num_rounds(self) -> int:
        """Forwards that ran."""
        return len(self._starts)

    def times(self) -> SimulatedTimes:
        """Figures since the start."""
        start, end = np.array(self._starts), np.array(self._ends)
        gaps = np.maximum(start[1:] - end[:-1], 0.0)
        span = float(end[-1] - start[0]) if end.size else 0.0
        busy = float((end - start).sum())
        exposed = np.percentile(gaps, (50, 99)) * 1e6 if gaps.size else (0.0, 0.0)
        return SimulatedTimes(
            rounds=self.num_rounds,
            rows=self._num_rows,
            tokens=self._num_tokens,
            busy_s=busy,
            span_s=span,
            host_s=self.clock.now() - self._began - self.clock.waited,
            exposed_us_p50=float(exposed[0]),
            exposed_us_p99=float(exposed[1]),
        )

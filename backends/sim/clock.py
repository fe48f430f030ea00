"""Time on the simulated machine, in seconds: the host's clock, which waiting for the device moves on.

Both clocks leave out what the simulation itself computes on the device's behalf, as far as they can.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The host's time. `waited`: how much of it was waiting for the device."""

    waited: float

    def now(self) -> float:
        """Seconds since some moment."""

    def wait_until(self, moment: float) -> None:
        """The host does nothing until then."""

    def leave_out(self, seconds: float) -> None:
        """So much of the host's thread went into computing the device's results."""

    def settle_round(self) -> None:
        """The host has waited for another round."""


class VirtualClock:
    """Waiting costs nothing. The host's own time is what its thread takes of a processor, so that other work on
    the machine does not count, or `host_us` for each round."""

    def __init__(self, host_us: float | None = None) -> None:
        self._host_us = host_us
        self._offset = 0.0 if host_us is not None else -time.thread_time()
        self.waited = 0.0

    def now(self) -> float:
        """The thread's time, less what was left out, plus what was waited."""
        return self._offset if self._host_us is not None else time.thread_time() + self._offset

    def wait_until(self, moment: float) -> None:
        """Jump there."""
        gap = moment - self.now()
        if gap > 0:
            self._offset += gap
            self.waited += gap

    def leave_out(self, seconds: float) -> None:
        """The host's clock stood still meanwhile."""
        if self._host_us is None:
            self._offset -= seconds

    def settle_round(self) -> None:
        """Charge the host's work of a round, where it has a fixed price."""
        if self._host_us is not None:
            self._offset += self._host_us * 1e-6


class RealClock:
    """The host really sleeps until the device is done. What the device computes is done while it would wait."""

    def __init__(self) -> None:
        self.waited = 0.0

    def now(self) -> float:
        """Seconds of the system's monotonic clock."""
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        """Sleep."""
        gap = moment - self.now()
        if gap > 0:
            time.sleep(gap)
            self.waited += gap

    def leave_out(self, seconds: float) -> None:
        """Nothing can be taken back."""

    def settle_round(self) -> None:
        """The host's work takes its own time."""

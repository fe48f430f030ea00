"""What a backend offers besides the seam if its time is not real: what time it is there, and how it was spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTimes:
    """Simulated figures since the start. A round is one forward; `rows` and `tokens` are sums over rounds.

    `busy_s` of `span_s`: device time from the first round's start to the last one's end. `host_s`: the host's
    own time, without waiting. `exposed_us_*`: percentiles of the device's idle time between two rounds.
    """

    rounds: int
    rows: int
    tokens: int
    busy_s: float
    span_s: float
    host_s: float
    exposed_us_p50: float
    exposed_us_p99: float

    @property
    def idle_fraction(self) -> float:
        """Share of the span in which the device does nothing."""
        return 1.0 - self.busy_s / self.span_s if self.span_s else 0.0


@runtime_checkable
class Simulated(Protocol):
    """A backend that only simulates a device. Whatever is measured on it must be called simulated."""

    def now(self) -> float:
        """The host's time in seconds on the simulated clock."""

    def times(self) -> SimulatedTimes:
        """How it was spent so far."""

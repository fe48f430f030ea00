"""What goes wrong on the simulated device and when: decided by a seed and a number alone, so that it repeats."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from isoinfer.backends.sim.fingerprint import mix_number

_FORWARD, _WHEN, _POLLS, _EARLY = 1, 2, 3, 4
_SCALE = 1 << 64


class Fault(Enum):
    """How a step ends. `LOST`: the device with it."""

    NONE = "none"
    RUBBISH = "and to leave rubbish in its KV"
    AFTER = "after it has written its KV"
    LOST = "the device is lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """`fail_rate`: share of steps that fail. `fail_steps`: numbers of steps that fail, counted from 1.
    `lose_step`: the step at which the device is lost, 0 = never. `max_polls`: an event that is done may be
    queried up to so many times before it says so. `early_rate`: share of enqueued items after which some
    of the queue runs at once; 0 = nothing runs before a host waits for it.
    """

    seed: int = 0
    fail_rate: float = 0.0
    fail_steps: frozenset[int] = frozenset()
    lose_step: int = 0
    max_polls: int = 0
    early_rate: float = 0.0

    def of_step(self, number: int) -> Fault:
        """What happens to step `number`."""
        if number == self.lose_step:
            return Fault.LOST
        if number in self.fail_steps or self._chance(_FORWARD, number, self.fail_rate):
            return Fault.AFTER if self._draw(_WHEN, number) % 2 else Fault.RUBBISH
        return Fault.NONE

    def polls(self, number: int) -> int:
        """How often event number `number` still says that it is not done."""
        return self._draw(_POLLS, number) % (self.max_polls + 1) if self.max_polls else 0

    def items_run_early(self, number: int, waiting: int) -> int:
        """How many of `waiting` items run now that item `number` is enqueued."""
        if not self._chance(_EARLY, number, self.early_rate):
            return 0
        return 1 + self._draw(_WHEN, number) % waiting

    def _chance(self, stream: int, number: int, rate: float) -> bool:
        return rate > 0 and self._draw(stream, number) < rate * _SCALE

    def _draw(self, stream: int, number: int) -> int:
        return mix_number(mix_number(self.seed * 8 + stream) + number)

"""The scheduler's state machine for a long time: whole engines on a simulated device, 100,000 rounds or six minutes."""

from __future__ import annotations

import time
from random import SystemRandom
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings

pytestmark = pytest.mark.gate

ROUNDS = 100_000
SECONDS = 360
EXAMPLES_AT_ONCE = 3


def test_as_many_rounds_as_there_is_time_for(scheduler_machine: Any) -> None:
    tally, first = scheduler_machine.tally, SystemRandom().randrange(1 << 32)
    print(f"seeds from {first}", flush=True)
    deadline = time.monotonic() + SECONDS
    for number in range(first, first + 1000):
        machine = seed(number)(type("Machine", (scheduler_machine,), {}))
        case = machine.TestCase("runTest")
        case.settings = settings(
            max_examples=EXAMPLES_AT_ONCE,
            stateful_step_count=60,
            deadline=None,
            print_blob=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        case.runTest()
        if tally["rounds"] >= ROUNDS or time.monotonic() > deadline:
            break
    print(f"seeds to {number}: {dict(sorted(tally.items()))}")
    assert tally["rounds"]

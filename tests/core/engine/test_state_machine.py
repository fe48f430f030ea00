"""Whole engines on a simulated device under random use: a short run of what the gate `scheduler_fuzz` does long."""

from __future__ import annotations

from typing import Any

from hypothesis import settings


def test_every_request_says_what_it_says_alone(scheduler_machine: Any) -> None:
    case = scheduler_machine.TestCase("runTest")
    case.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
    case.runTest()
    assert scheduler_machine.tally["rounds"]

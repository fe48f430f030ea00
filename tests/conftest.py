"""What tests in several folders share."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def scheduler_machine() -> Any:
    """The state machine of the scheduler, a class whose `tally` is empty. Its modules lie beside the core's tests."""
    name, folder = "scheduler_fuzz", str(Path(__file__).parent / "core" / "engine")
    if folder not in sys.path:
        pytest.register_assert_rewrite(name)
        sys.path.append(folder)
    from scheduler_fuzz.machine import SchedulerMachine

    return type("Machine", (SchedulerMachine,), {"tally": Counter()})

"""Times of device work through the seam alone: launch many, wait once. Works for every backend."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def seconds_each(backend: Any, stream: Any, fn: Callable[[], Any], *, launches: int, repeats: int = 5) -> float:
    """Median over `repeats` of the time of one of `launches` calls, after a warm-up."""

    def run(count: int) -> float:
        done = backend.event()
        started = time.perf_counter()
        for _ in range(count):
            stream.launch(_quiet, fn)
        done.record(stream)
        done.synchronize()
        return time.perf_counter() - started

    run(min(3, launches))
    return statistics.median(run(launches) / launches for _ in range(repeats))


def _quiet(fn: Callable[[], Any]) -> None:
    fn()

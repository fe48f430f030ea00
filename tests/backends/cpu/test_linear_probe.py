from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isoinfer.backends.cpu import linear_probe


@pytest.mark.parametrize(("theirs", "expected"), [(1.0, False), (0.8, False), (0.5, True)])
def test_onednn_must_win_clearly(
    open_backend: Any, need_native: None, monkeypatch: pytest.MonkeyPatch, theirs: float, expected: bool
) -> None:
    monkeypatch.setattr(linear_probe, "_best_of_both", lambda ours, onednn: (1.0, theirs))
    assert linear_probe.onednn_is_faster(open_backend()._native, "float32") is expected


def test_one_good_shape_does_not_make_up_for_bad_ones(
    open_backend: Any, need_native: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([(1.0, 0.2), (1.0, 1.2), (1.0, 1.4)])
    monkeypatch.setattr(linear_probe, "_best_of_both", lambda ours, onednn: next(times))
    assert linear_probe.onednn_is_faster(open_backend()._native, "float32") is False


def test_both_are_timed_in_turn_and_the_first_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [0.0], []

    def takes(name: str, *seconds: float) -> Callable[[], None]:
        left = iter((*seconds, *[9.0] * linear_probe.REPEATS))

        def run() -> None:
            calls.append(name)
            clock[0] += next(left)

        return run

    monkeypatch.setattr(linear_probe.time, "perf_counter", lambda: clock[0])
    best = linear_probe._best_of_both(takes("a", 0.1, 5.0, 3.0), takes("b", 0.2, 2.0, 4.0))
    assert best == pytest.approx((3.0, 2.0))
    assert calls[:4] == ["a", "b", "a", "b"]
    assert len(calls) == 2 * (linear_probe.REPEATS + 1)


def test_it_really_runs(open_backend: Any, need_native: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_probe, "REPEATS", 1)
    assert linear_probe.onednn_is_faster(open_backend()._native, "float32") in (True, False)

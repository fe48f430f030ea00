"""Figures that can be printed before anything was done."""

from __future__ import annotations

from isoinfer.batch.tally import Tally


def test_rates_are_of_this_run_and_failures_of_the_whole_file():
    tally = Tally(total=10, resumed=4, written=6, failed=3, output_tokens=30, seconds=2.0)
    assert tally.as_dict()["lines_per_second"] == 3.0
    assert tally.as_dict()["output_tokens_per_second"] == 15.0
    assert "10 lines (7 answered, 3 failed, 4 of them from an earlier run) in 2.0 s" in tally.sentence()


def test_no_time_no_rate():
    assert Tally().lines_per_second == 0.0
    assert "0 lines" in Tally().sentence()

"""What a step ahead hides, and what it wastes, small: the virtual clock gives the same numbers everywhere."""

from __future__ import annotations


def test_depth_2_hides_the_host(program):
    figure = program("overlap").speed_up_virtual(8)
    (ratio,) = figure.values
    assert 1.45 < ratio < 1.5


def test_wasted_rows_keep_their_bounds(program):
    figures = {figure.case: figure for figure in program("overlap").wasted(8)}
    assert len(figures) == 12
    for case, figure in figures.items():
        assert figure.values[0] <= (0 if figure.goal == "0" else 1), case
    assert figures["EOS finishes, no drafts, depth 2"].values == [1]


def test_exposed_time_is_measured_on_the_real_clock(program, monkeypatch):
    overlap = program("overlap")
    monkeypatch.setattr(overlap, "OUTPUT", 8)
    monkeypatch.setattr(overlap, "EXPOSED_NUMBERS", (4,))
    figures = list(overlap.exposed(1))
    assert [figure.what[-3:] for figure in figures] == ["p50", "p99"] * 2
    assert figures[0].values[0] > 0, "at depth 1 the device waits for the host in every round"


def test_row_shows_median_and_spread(program):
    figure = program("overlap").Figure(what="x", case="y", values=[3.0, 1.0, 2.0], unit="µs", goal="z")
    assert figure.row() == ["x", "y", "2 µs", "1 - 3", "z"]

"""Errors are one line; progress and tables survive any text."""

from __future__ import annotations

from types import SimpleNamespace

from isoinfer.cli.figures import Figures
from isoinfer.cli.progress import item_progress
from isoinfer.cli.tables import print_table
from isoinfer.cli.terminal import print_error, stdin_is_terminal


def test_an_error_of_many_lines_is_one(capsys):
    print_error("first\n  second\r\n\nthird")
    assert capsys.readouterr().err == "error: first second third\n"


def test_a_missing_stdin_is_no_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert not stdin_is_terminal()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(closed=True))
    assert not stdin_is_terminal()


def test_a_table_in_a_pipe_is_aligned_and_untouched(capsys):
    print_table(("a", "b"), [("[red]x[/red]", "1"), ("y", "")])
    assert capsys.readouterr().out == "a             b\n[red]x[/red]  1\ny\n"


def test_a_table_on_a_terminal_keeps_brackets(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    print_table(("a", "b"), [("[red]x[/red]", "1")])
    assert "[red]x[/red]" in capsys.readouterr().out


def test_progress_shows_counts_and_rates(capsys):
    with item_progress("lines", 10, already=4) as show:
        show(3, 50)
    err = capsys.readouterr().err
    assert "7/10" in err
    assert "lines/s" in err
    assert "tok/s" in err


def test_figures_before_anything_happened():
    assert Figures().sentence().startswith("0 requests, 0 prompt tokens, 0 output tokens in ")

"""Tables on stdout: drawn and fitted on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """One line per row in a pipe; on a terminal long cells are wrapped. Nothing in a cell is markup."""
    if sys.stdout.isatty():
        _print_drawn(titles, rows)
    else:
        _print_plain([titles, *rows])


def _print_plain(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_drawn(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*titles, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)

"""A progress bar on stderr with the rates that matter: items and output tokens per second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def item_progress(noun: str, total: int | None, *, already: int = 0) -> Iterator[Callable[[int, int], None]]:
    """Yields `show(items done now, output tokens)`. `already` items were done earlier and count for no rate."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rates]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    started = time.monotonic()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(noun, total=total, completed=already, rates="")

        def show(done: int, tokens: int) -> None:
            seconds = max(time.monotonic() - started, 1e-9)
            rates = f"{done / seconds:.1f} {noun}/s, {tokens / seconds:.0f} tok/s"
            progress.update(task, completed=already + done, rates=rates)

        yield show

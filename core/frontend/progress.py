"""A progress bar for jobs of many requests: finished, rate, tokens, time left. On stderr, only where wanted."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from isoinfer.outputs import RequestOutput


class RequestProgress:
    """Counts finished requests and the tokens they made."""

    def __init__(self, total: int, done: int = 0, *, enabled: bool = True) -> None:
        self._tokens = 0
        self._bar = Progress(
            TextColumn("requests"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[tokens]} tokens, {task.fields[rate]:.0f} tokens/s"),
            console=Console(file=sys.stderr),
            disable=not enabled,
        )
        self._task = self._bar.add_task("requests", total=total, completed=done, tokens=0, rate=0.0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self, output: RequestOutput) -> None:
        """A request has finished."""
        self._tokens += sum(len(completion.token_ids) for completion in output.outputs)
        elapsed = self._bar.tasks[0].elapsed or 1e-9
        self._bar.update(self._task, advance=1, tokens=self._tokens, rate=self._tokens / elapsed)

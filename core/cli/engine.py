"""Opens the LLM that a command needs: loading shown on stderr, start-up lines printed, closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from isoinfer.cli.options import EngineOptions
from isoinfer.cli.terminal import print_note, stderr_is_terminal

if TYPE_CHECKING:
    from isoinfer.llm import LLM


@contextmanager
def open_engine(model: str, options: EngineOptions) -> Iterator[LLM]:
    """The engine, ready. UserError for a model or backend that cannot be used."""
    from isoinfer.llm import LLM

    with _loading(model) as on_progress:
        llm = LLM(model, **options.as_dict(), progress=on_progress)
    try:
        for line in llm.describe():
            print_note(line)
        yield llm
    finally:
        llm.close()


@contextmanager
def _loading(model: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar over the weights; nothing where no person is watching."""
    if not stderr_is_terminal():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"loading {Path(model).name}", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)

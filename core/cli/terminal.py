"""What goes to stderr: errors, notes, progress. Results go to stdout and nowhere else."""

from __future__ import annotations

import json
import sys
from typing import Any


def print_error(message: str) -> None:
    """One line, whatever the message holds."""
    print(f"error: {one_line(message)}", file=sys.stderr, flush=True)


def print_note(message: str) -> None:
    """A line for people beside the results."""
    print(message, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One JSON value on one line of stdout."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def one_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(part.strip() for part in text.splitlines() if part.strip())


def stderr_is_terminal() -> bool:
    """Whether a person may be watching stderr."""
    return sys.stderr.isatty()


def stdin_is_terminal() -> bool:
    """Whether a person may be typing. A closed stdin is none."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()

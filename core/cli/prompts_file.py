"""Prompts from a file or stdin, one a line."""

from __future__ import annotations

import sys
from pathlib import Path

from isoinfer.errors import UserError


def read_prompts(path: str, option: str) -> list[str]:
    """The lines of a UTF-8 file that are not blank, in order. UserError that names `option` otherwise."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"Cannot read {option} {path}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{option} {path} is not UTF-8: {error.reason} at byte {error.start}.") from None
    return lines_of(text, path)


def read_stdin() -> list[str]:
    """The lines of stdin that are not blank."""
    return lines_of(sys.stdin.read(), "stdin")


def lines_of(text: str, name: str) -> list[str]:
    """The lines that are not blank. UserError if there is none."""
    prompts = [line for line in text.splitlines() if line.strip()]
    if not prompts:
        raise UserError(f"{name} holds no prompt. Give at least one line.")
    return prompts

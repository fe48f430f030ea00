"""Keeps two runs from writing the same output file, where the system can tell."""

from __future__ import annotations

from io import FileIO

from isoinfer.errors import UserError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


def lock_file(file: FileIO, name: str) -> None:
    """Hold the file until it is closed. UserError if another process holds it."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"Another run is writing {name}. Wait for it, or give another output file.") from None
    except OSError:  # a file system without locks: go on, as if there were none
        return

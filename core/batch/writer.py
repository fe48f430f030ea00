"""Writes the output file: whole lines only, each handed to the system at once, on the disk every few seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from io import FileIO

SYNC_SECONDS = 5.0


class LineWriter:
    """Appends lines to an unbuffered file, from byte `end` on. What `close` leaves behind ends with a whole line."""

    def __init__(self, file: FileIO, *, end: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        # End of the last whole line and lines written: one tuple, so that an interrupt cannot come between the two.
        self._state = (end, 0)
        self._clock = clock
        self._synced = clock()
        # At once: what a killed run leaves behind must not be followed by older bytes.
        file.truncate(end)

    @property
    def num_lines(self) -> int:
        """Whole lines written through this writer."""
        return self._state[1]

    def write(self, line: bytes) -> None:
        """Append one line (with its newline). OSError, as for a full disk, leaves the earlier lines whole."""
        end, num_lines = self._state
        self._file.seek(end)
        view = memoryview(line)
        while view:
            view = view[self._file.write(view) :]
        self._state = (end + len(line), num_lines + 1)
        if self._clock() - self._synced >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Force what was written to the disk."""
        os.fsync(self._file.fileno())
        self._synced = self._clock()

    def close(self) -> None:
        """Cut off a line that an interrupt tore, then sync and close. May be called again."""
        if self._file.closed:
            return
        try:
            self._file.truncate(self._state[0])
            self.sync()
        finally:
            self._file.close()

"""A batch job: the two files, what is already done, and one run. Files are checked before any model is loaded."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from isoinfer.batch.engine import BatchEngine
from isoinfer.batch.file_lock import lock_file
from isoinfer.batch.reader import Line, read_lines
from isoinfer.batch.resume import Done, resume
from isoinfer.batch.runner import BatchRunner, Limits
from isoinfer.batch.seen_ids import SeenIds
from isoinfer.batch.tally import Tally
from isoinfer.batch.writer import LineWriter
from isoinfer.errors import UserError

STDIN = "-"


class BatchJob:
    """A context manager. After entering, `tally` says how much an earlier run has done; `run` does the rest.

    `settings`: what answers depend on besides the lines, such as the model. UserError on entering: a file
    cannot be used, or the output belongs to another input or to other settings.
    """

    def __init__(self, input_path: str, output_path: str, *, settings: str = "", overwrite: bool = False) -> None:
        self._input_path = input_path
        self._output_path = output_path
        self._settings = settings
        self._overwrite = overwrite
        self._stack = ExitStack()
        self.tally = Tally()

    def __enter__(self) -> Self:
        try:
            self._open()
        except OSError as error:
            self._stack.close()
            raise UserError(f"{error.filename or self._output_path}: {error.strerror or error}.") from None
        except BaseException:
            self._stack.close()
            raise
        return self

    def _open(self) -> None:
        _check_paths(self._input_path, self._output_path)
        source = self._open_input()
        total = None if self._input_path == STDIN else _count_lines(source)
        self._lines: Iterator[Line] = read_lines(source)
        self._seen = SeenIds()
        self._stack.callback(self._seen.close)
        output = self._open_output()
        done = self._resume()
        self._writer = LineWriter(output, end=done.end)
        self._stack.callback(self._writer.close)
        self.tally = Tally(total=total, resumed=done.lines, failed=done.failed)

    def _open_input(self) -> BinaryIO:
        if self._input_path == STDIN:
            return sys.stdin.buffer
        return self._stack.enter_context(Path(self._input_path).open("rb"))

    def _open_output(self) -> FileIO:
        # Never truncated here: the lock comes first, and then the check that it is ours to continue.
        descriptor = os.open(self._output_path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        output = self._stack.enter_context(FileIO(descriptor, "r+"))
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UserError(f"{self._output_path} is not a regular file. Give -o a file, so that a run can be resumed.")
        lock_file(output, self._output_path)
        return output

    def _resume(self) -> Done:
        if self._overwrite:
            return Done()
        with Path(self._output_path).open("rb") as existing:
            return resume(existing, self._lines, self._seen, (self._input_path, self._output_path), self._settings)

    @property
    def finished(self) -> bool:
        """Whether the output file already answers every line, so that no model is needed."""
        return self.tally.total is not None and self.tally.resumed >= self.tally.total

    def run(
        self,
        engine: BatchEngine,
        *,
        limits: Limits | None = None,
        on_progress: Callable[[Tally], None] = lambda tally: None,
    ) -> Tally:
        """Answer the remaining lines. KeyboardInterrupt and DeviceLost pass through; the file is valid then too."""
        runner = BatchRunner(
            engine,
            self._writer,
            self._seen,
            self.tally,
            settings=self._settings,
            limits=limits,
            on_progress=on_progress,
        )
        runner.run(self._lines)
        return self.tally

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def _check_paths(input_path: str, output_path: str) -> None:
    source, target = Path(input_path), Path(output_path)
    if input_path != STDIN and not source.exists():
        raise UserError(f"There is no input file {input_path}. Check the path given to -i.")
    if source.is_dir() or target.is_dir():
        raise UserError(f"{source if source.is_dir() else target} is a folder. Give a file.")
    if not target.parent.is_dir():
        raise UserError(f"The folder {target.parent} of the output file does not exist. Create it first.")
    if input_path != STDIN and target.exists() and os.path.samefile(source, target):
        raise UserError(f"Input and output are the same file, {input_path}. Give -o another name.")


def _count_lines(source: BinaryIO) -> int | None:
    """Lines that are not blank, in one quick pass; None if the input cannot be read twice (a pipe)."""
    if not source.seekable():
        return None
    total = sum(1 for _ in read_lines(source))
    source.seek(0)
    return total

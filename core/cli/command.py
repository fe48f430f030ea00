"""What every command does alike: option groups, and a quiet end on Ctrl-C or a closed pipe."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable

from isoinfer.cli.exit_codes import INTERRUPTED, SOME_FAILED
from isoinfer.cli.option_groups import expand_groups
from isoinfer.cli.terminal import print_error, print_note


def command(function: Callable[..., int]) -> Callable[..., int]:
    """Make a function that returns an exit code into a command for typer."""
    expanded = expand_groups(function)

    @functools.wraps(expanded)
    def guarded(**values: object) -> int:
        try:
            code = expanded(**values)
            sys.stdout.flush()
            return code
        except KeyboardInterrupt:
            print_note("interrupted")
            return INTERRUPTED
        except BrokenPipeError:
            _silence_stdout()
            return SOME_FAILED
        except OSError as error:  # reading and writing files has messages of its own; what is left is stdout
            _silence_stdout()
            print_error(f"the output cannot be written: {error.strerror or error}")
            return SOME_FAILED

    del guarded.__wrapped__
    return guarded


def _silence_stdout() -> None:
    """Whoever read stdout is gone; the interpreter's last flush must not complain about it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""The `isoinfer` command: its sub-commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

import typer

from isoinfer.cli.backends import backends
from isoinfer.cli.batch import batch
from isoinfer.cli.bench import bench
from isoinfer.cli.chat import chat
from isoinfer.cli.command import command
from isoinfer.cli.exit_codes import DONE, INTERRUPTED, SOME_FAILED, USAGE
from isoinfer.cli.explain import explain
from isoinfer.cli.generate import generate
from isoinfer.cli.replay_error import replay_error
from isoinfer.cli.terminal import print_error, print_note
from isoinfer.errors import DeviceLost, StepError, UserError
from isoinfer.version import __version__

COMMANDS: Mapping[str, Callable[..., int]] = {
    "generate": generate,
    "chat": chat,
    "batch": batch,
    "bench": bench,
    "backends": backends,
    "explain": explain,
    "replay-error": replay_error,
}

# typer's usage errors have this base; newer versions bring their own click, so it is found by way of typer.
_UsageError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def build_app() -> typer.Typer:
    """The typer application with all commands."""
    app = typer.Typer(
        name="isoinfer",
        help="One LLM inference engine, every accelerator, the same tokens.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(_root)
    for name, function in COMMANDS.items():
        app.command(name)(command(function))
    return app


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code. User errors are one line on stderr, never a traceback."""
    cli = typer.main.get_command(build_app())
    try:
        code = cli.main(args=list(args) or ["--help"], prog_name="isoinfer", standalone_mode=False)
        return code if isinstance(code, int) else DONE
    except _UsageError as error:
        print_error(_usage_text(error))
    except UserError as error:
        print_error(str(error))
    except (DeviceLost, StepError) as error:
        print_error(str(error))
        return SOME_FAILED
    except (typer.Abort, KeyboardInterrupt):
        print_note("interrupted")
        return INTERRUPTED
    return USAGE


def main() -> int:
    """Entry point of the `isoinfer` script."""
    return run(sys.argv[1:])


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"isoinfer {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", help="Print the version and leave.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Options before the command."""


def _usage_text(error: Exception) -> str:
    text = str(error.format_message()) if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    hint = f" See: {context.command_path} --help" if context is not None else ""
    return f"{text.rstrip('.')}.{hint}"

"""`isoinfer batch`: answers an OpenAI batch file line by line; a run that was cut short is continued."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isoinfer.cli.exit_codes import DONE, INTERRUPTED, SOME_FAILED
from isoinfer.cli.options import EngineOptions, JsonFlag, ModelPath
from isoinfer.cli.terminal import print_json, print_note, stderr_is_terminal
from isoinfer.errors import UserError

if TYPE_CHECKING:
    from isoinfer.batch.job import BatchJob
    from isoinfer.batch.tally import Tally

# Enough waiting behind the running requests that none of them ever waits for the reader.
IN_FLIGHT_PER_SEQ = 2
WINDOW_PER_IN_FLIGHT = 8


def batch(
    model: ModelPath,
    engine: EngineOptions,
    input_file: Annotated[
        str, typer.Option("--input-file", "-i", help="OpenAI batch file (JSON lines), or - for stdin.")
    ],
    output_file: Annotated[
        str, typer.Option("--output-file", "-o", help="Results, in input order. An unfinished one is continued.")
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the output file instead of continuing it.")
    ] = False,
    json: JsonFlag = False,
) -> int:
    """Answer an OpenAI batch file: /v1/chat/completions and /v1/completions."""
    from isoinfer.batch.job import BatchJob

    with BatchJob(input_file, output_file, settings=_settings(model, engine), overwrite=overwrite) as job:
        if job.tally.resumed:
            print_note(f"{output_file} already answers {job.tally.resumed} lines; going on after them")
        interrupted = _run(job, model, engine, output_file)
    if interrupted:
        return INTERRUPTED
    if json:
        print_json({**job.tally.as_dict(), "output_file": output_file})
    print_note(f"{job.tally.sentence()} -> {output_file}")
    return SOME_FAILED if job.tally.failed else DONE


def _settings(model: str, engine: EngineOptions) -> str:
    """What an answer depends on besides its line; where and how fast it is computed is not among it."""
    return f"{Path(model).name} {engine.dtype} {engine.quantization}"


def _run(job: BatchJob, model: str, engine: EngineOptions, output_file: str) -> bool:
    """Do the rest of the job. True if a person stopped it; what is finished is in the file then."""
    if job.finished:
        return False
    from isoinfer.batch.runner import Limits
    from isoinfer.cli.engine import open_engine

    in_flight = IN_FLIGHT_PER_SEQ * engine.max_num_seqs
    limits = Limits(max_in_flight=in_flight, max_window=WINDOW_PER_IN_FLIGHT * in_flight)
    try:
        with open_engine(model, engine) as llm, _bar(job.tally) as on_progress:
            job.run(llm, limits=limits, on_progress=on_progress)
    except KeyboardInterrupt:
        print_note(
            f"interrupted: {output_file} holds the first {job.tally.lines} results and is valid. Run the same command "
            "again to go on from there."
        )
        return True
    except OSError as error:
        raise UserError(
            f"Cannot go on writing {output_file}: {error.strerror or error}. It holds the first {job.tally.lines} "
            "results; run the same command again to go on from there."
        ) from None
    return False


@contextmanager
def _bar(tally: Tally) -> Iterator[Callable[[Tally], None]]:
    if not stderr_is_terminal():
        yield lambda tally: None
        return
    from isoinfer.cli.progress import item_progress

    with item_progress("lines", tally.total, already=tally.resumed) as show:
        yield lambda tally: show(tally.written, tally.output_tokens)

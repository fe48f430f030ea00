"""`isoinfer generate`: completions of prompts from the command line, a file or stdin."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoinfer.cli.exit_codes import DONE, SOME_FAILED
from isoinfer.cli.options import EngineOptions, JsonFlag, ModelPath, SamplingOptions
from isoinfer.cli.prompts_file import read_prompts, read_stdin
from isoinfer.cli.terminal import print_error, print_json, print_note, stderr_is_terminal, stdin_is_terminal
from isoinfer.errors import RequestError, UserError

if TYPE_CHECKING:
    from isoinfer.cli.figures import Figures
    from isoinfer.cli.in_order import Answer
    from isoinfer.llm import LLM
    from isoinfer.sampling_params import SamplingParams

DEFAULT_MAX_TOKENS = 128


def generate(
    model: ModelPath,
    engine: EngineOptions,
    sampling: SamplingOptions,
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts to complete.", show_default=False)] = None,
    prompts_file: Annotated[str | None, typer.Option("--prompts-file", help="Read prompts, one a line.")] = None,
    n: Annotated[int, typer.Option("-n", "--n", help="Completions per prompt.")] = 1,
    json: JsonFlag = False,
) -> int:
    """Complete prompts: arguments, --prompts-file, or lines of stdin."""
    from isoinfer.cli.engine import open_engine
    from isoinfer.cli.figures import Figures

    texts = _read_prompts(prompts or [], prompts_file)
    params = sampling.params(max_tokens=DEFAULT_MAX_TOKENS, n=n)
    with open_engine(model, engine) as llm:
        figures = Figures()
        try:
            if len(texts) == 1 and n == 1 and not json:
                _stream(llm, texts[0], params, figures)
            else:
                _answer_all(llm, texts, params, figures, json, 2 * engine.max_num_seqs)
        finally:
            print_note(figures.sentence(llm.stats().sentence()))
    return SOME_FAILED if figures.failed else DONE


def _read_prompts(arguments: Sequence[str], prompts_file: str | None) -> Sequence[str]:
    if arguments and prompts_file is not None:
        raise UserError("Give prompts as arguments or with --prompts-file, not both.")
    if arguments:
        return arguments
    if prompts_file is not None:
        return read_prompts(prompts_file, "--prompts-file")
    if stdin_is_terminal() or sys.stdin is None:
        raise UserError('There is no prompt. Give one as an argument, such as: isoinfer generate -m MODEL "Once"')
    return read_stdin()


def _stream(llm: LLM, prompt: str, params: SamplingParams, figures: Figures) -> None:
    """One prompt's text as it comes."""
    output, error = None, None
    try:
        with closing(llm.stream(prompt, params)) as outputs:  # type: ignore[type-var]
            for output in outputs:
                print(output.outputs[0].text_delta, end="", flush=True)
                error = output.error
        print(flush=True)
    except RequestError as refused:
        error = str(refused)
    if error is not None:
        print_error(error)
    figures.add(output, error)


def _answer_all(
    llm: LLM, prompts: Sequence[str], params: SamplingParams, figures: Figures, json: bool, max_in_flight: int
) -> None:
    from isoinfer.cli.in_order import answer_in_order

    with _bar(len(prompts), figures) as on_finished:
        answers = answer_in_order(llm, prompts, params, max_in_flight=max_in_flight, on_finished=on_finished)
        for answer in answers:
            if json:
                print_json(_as_json(answer))
            else:
                _print_text(answer, many=len(prompts) > 1)


@contextmanager
def _bar(total: int, figures: Figures) -> Iterator[Callable[[Answer], None]]:
    """Counts finished prompts, and shows them where a person watches more than one."""

    def count(answer: Answer) -> None:
        figures.add(answer.output, answer.error)

    if total == 1 or not stderr_is_terminal():
        yield count
        return
    from isoinfer.cli.progress import item_progress

    with item_progress("prompts", total) as show:

        def count_and_show(answer: Answer) -> None:
            count(answer)
            show(figures.requests, figures.output_tokens)

        yield count_and_show


def _as_json(answer: Answer) -> dict[str, Any]:
    from isoinfer.cli.output_json import output_dict

    head = {"index": answer.index, "prompt": answer.prompt}
    if answer.output is None:
        return {**head, "outputs": [], "usage": None, "error": answer.error}
    return {**head, **output_dict(answer.output)}


def _print_text(answer: Answer, *, many: bool) -> None:
    """Texts alone for one prompt; each under its prompt for many."""
    if answer.error is not None:
        print_error(f"prompt {answer.index + 1}: {answer.error}")
        return
    assert answer.output is not None
    if many:
        print(f"[{answer.index + 1}] {answer.prompt}")
    for completion in answer.output.outputs:
        label = f"({completion.index + 1}) " if len(answer.output.outputs) > 1 else ""
        print(f"{label}{completion.text}", flush=True)
    if many:
        print(flush=True)

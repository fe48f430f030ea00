"""`isoinfer chat`: one answer to a message, streamed, or a conversation on the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoinfer.cli.exit_codes import DONE, SOME_FAILED
from isoinfer.cli.options import EngineOptions, JsonFlag, ModelPath, SamplingOptions
from isoinfer.cli.terminal import print_error, print_json, print_note, stdin_is_terminal
from isoinfer.errors import RequestError, TemplateError, UserError

if TYPE_CHECKING:
    from isoinfer.llm import LLM
    from isoinfer.sampling_params import SamplingParams

DEFAULT_MAX_TOKENS = 512


def chat(
    model: ModelPath,
    engine: EngineOptions,
    sampling: SamplingOptions,
    message: Annotated[str | None, typer.Argument(help="What to ask.", show_default=False)] = None,
    system: Annotated[str | None, typer.Option("--system", help="The system message.")] = None,
    json: JsonFlag = False,
) -> int:
    """Ask the model; without a message, talk to it (or read the message from a pipe)."""
    from isoinfer.cli.engine import open_engine

    interactive = message is None and stdin_is_terminal()
    if interactive and json:
        raise UserError("--json needs a message. Give one as an argument or on stdin.")
    question = "" if interactive else _question(message)
    params = sampling.params(max_tokens=DEFAULT_MAX_TOKENS)
    with open_engine(model, engine) as llm:
        if interactive:
            from isoinfer.cli.conversation import Conversation

            Conversation(llm, params, system).run()
            return DONE
        return _answer(llm, _messages(question, system), params, json)


def _question(message: str | None) -> str:
    text = message if message is not None else sys.stdin.read() if sys.stdin is not None else ""
    if not text.strip():
        raise UserError("The message is empty. Give some text as an argument or on stdin.")
    return text if message is not None else text.rstrip("\n")


def _messages(question: str, system: str | None) -> list[dict[str, Any]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": question}]


def _answer(llm: LLM, messages: list[dict[str, Any]], params: SamplingParams, json: bool) -> int:
    from isoinfer.cli.figures import Figures
    from isoinfer.cli.streaming import stream_answer

    figures, output, error = Figures(), None, None
    try:
        output = stream_answer(llm, messages, params, show=not json)
        error = output.error
    except (RequestError, TemplateError) as refused:
        error = str(refused)
    if json:
        print_json(_as_json(output, error))
    if error is not None:
        print_error(error)
    figures.add(output, error)
    print_note(figures.sentence(llm.stats().sentence()))
    return DONE if error is None else SOME_FAILED


def _as_json(output: Any, error: str | None) -> dict[str, Any]:
    from isoinfer.cli.output_json import output_dict

    if output is None:
        return {"message": None, "outputs": [], "usage": None, "error": error}
    text = output.outputs[0].text
    return {"message": {"role": "assistant", "content": text}, **output_dict(output)}

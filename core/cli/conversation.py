"""A conversation on the terminal. What the model says goes to stdout, everything else to stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoinfer.cli.streaming import stream_answer
from isoinfer.cli.terminal import print_error, print_note
from isoinfer.errors import RequestError, TemplateError
from isoinfer.sampling_params import SamplingParams

if TYPE_CHECKING:
    from isoinfer.llm import LLM

PROMPT = "> "
HELP = "/reset forgets the conversation, /system TEXT sets the system message, /exit or Ctrl-D leaves, Ctrl-C stops"


class Conversation:
    """The messages so far and the loop that reads, asks and prints."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._system = system
        self._turns: list[dict[str, Any]] = []

    def run(self) -> None:
        """Until /exit or the end of the input."""
        _enable_editing()
        print_note(HELP)
        while (line := _read_line()) is not None:
            if line.startswith("/"):
                if not self._obey(line):
                    return
            elif line:
                self._ask(line)

    def _obey(self, line: str) -> bool:
        """Carry out a command. False for the one that leaves."""
        name, _, text = line.partition(" ")
        if name in ("/exit", "/quit"):
            return False
        if name == "/reset":
            self._turns.clear()
            print_note("forgotten")
        elif name == "/system":
            self._system = text.strip() or None
            print_note("system message set" if self._system else "system message removed")
        else:
            print_note(HELP)
        return True

    def _ask(self, text: str) -> None:
        """One turn. It is part of the conversation only if it got a whole answer."""
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        question = {"role": "user", "content": text}
        try:
            output = stream_answer(self._llm, [*system, *self._turns, question], self._params)
        except KeyboardInterrupt:
            print_note("stopped; this question and its answer are not remembered")
            return
        except (RequestError, TemplateError) as error:
            print_error(f"{error} (/reset forgets the conversation)")
            return
        if output.error is not None:
            print_error(output.error)
            return
        self._turns += [question, {"role": "assistant", "content": output.outputs[0].text}]


def _read_line() -> str | None:
    """The next line without its ends, or None at the end of the input. Ctrl-C clears the line."""
    while True:
        try:
            return input(PROMPT).strip()
        except KeyboardInterrupt:
            print_note("")
        except EOFError:
            print_note("")
            return None


def _enable_editing() -> None:
    """Arrow keys and history in `input`, where the platform has them."""
    try:
        import readline  # noqa: F401
    except ImportError:
        return

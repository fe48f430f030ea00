"""Rendering a chat with the model's own Jinja template, in a sandbox, as Hugging Face's tools do.

Templates are foreign code: the sandbox lets them read what they are given and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, ContextReference, Node
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from isoinfer.errors import RequestError, TemplateError

Message = Mapping[str, Any]

# Signs that a template looks into content given as a list of parts; others get the joined text.
_READS_PARTS = re.compile(
    r"is\s+(not\s+)?(string|iterable|sequence|mapping)|in\s+\w+(\.content\b|\[\s*['\"]content['\"]\s*\])|\bcontent\[0\]"
)


class ChatTemplate:
    """A compiled template. TemplateError if it is not valid Jinja."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        self._reads_parts = _READS_PARTS.search(source) is not None
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"The model's chat template is not valid: {error}. Give another template.") from error

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt as text, special tokens written out (so encode it without adding any).

        A message has a "role" and a "content": text, or a list of {"type": "text", "text": ...} parts.
        `kwargs` are variables of the template. RequestError if a message is malformed, TemplateError
        with the template's own words if it refuses.
        """
        check_messages(messages)
        given = [message if self._reads_parts else _flatten(message) for message in messages]
        variables = {**self._special_tokens, **kwargs}
        try:
            return self._template.render(
                messages=given, tools=tools, documents=None, add_generation_prompt=add_generation_prompt, **variables
            )
        except jinja2.TemplateError as error:
            raise TemplateError(
                f"The model's chat template rejects these messages: {error.message or error}"
            ) from error
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
            raise TemplateError(f"The model's chat template fails on these messages: {error}") from error


def check_messages(messages: Any) -> None:
    """RequestError, naming the message and the fault, unless `messages` is a non-empty list of valid messages."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise RequestError("messages must be a non-empty list of {'role': ..., 'content': ...}.")
    for index, message in enumerate(messages):
        fault = _fault(message)
        if fault:
            raise RequestError(f"messages[{index}] {fault}.")


def _fault(message: Any) -> str:
    if not isinstance(message, Mapping):
        return f"must be an object with 'role' and 'content', not {type(message).__name__}"
    role = message.get("role")
    if not isinstance(role, str) or not role:
        return "has no 'role': give 'system', 'user' or 'assistant'"
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return ""
    if isinstance(content, list):
        return next((fault for part in content if (fault := _part_fault(part))), "")
    return "" if isinstance(content, str) else f"must have a text or a list of parts as 'content', not {_kind(content)}"


def _part_fault(part: Any) -> str:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        return "has a content part that is no object with a 'type'"
    if part["type"] == "text" and not isinstance(part.get("text"), str):
        return "has a text part without 'text'"
    return ""


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def _flatten(message: Message) -> Message:
    """For templates that expect a text: the text parts as lines."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    others = sorted({part["type"] for part in content if part["type"] != "text"})
    if others:
        raise RequestError(f"This model takes text only, but a message has parts of type {', '.join(others)}.")
    return {**message, "content": "\n".join(part["text"] for part in content)}


class _Generation(Extension):
    """The tag `{% generation %}` around what an assistant says: training marks it, rendering just writes it."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as a plain set)

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_write", [ContextReference()])
        return CallBlock(call, [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _write(self, _eval_context: Any, _context: Any, caller: Macro) -> str:
        return str(caller())


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter: no HTML escapes, characters as they are."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)

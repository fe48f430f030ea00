"""Checks a JSON object against a pydantic model and says in one line what is wrong with it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from isoinfer.batch.bodies import CommonBody
from isoinfer.batch.line_error import LineError

Model = TypeVar("Model", bound=BaseModel)
Body = TypeVar("Body", bound=CommonBody)
MAX_SHOWN = 3


def check_body(model: type[Body], data: object) -> Body:
    """The body, or LineError: unknown field (with the nearest known one), wrong type, or a refused setting."""
    body = check(model, data)
    for name, inert in model.INERT.items():
        value = getattr(body, name)
        if not any(value == choice and type(value) is type(choice) for choice in inert):
            raise LineError(
                "not_supported",
                f"{name}={value!r:.60} is not supported yet. Leave {name!r} out of the body.",
                param=name,
            )
    return body


def check(model: type[Model], data: object) -> Model:
    """`data` as `model`, or LineError with up to three problems in words."""
    if not isinstance(data, dict):
        raise LineError("invalid_type", f"The body must be a JSON object, got {type(data).__name__}.", param="body")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        raise _as_line_error(problems, model.model_fields) from None


def nearest(name: str, known: Iterable[str]) -> str:
    """`Did you mean 'x'?`, or nothing if no known name is near."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _as_line_error(problems: list[Any], known: Iterable[str]) -> LineError:
    shown = " ".join(_sentence(problem, known) for problem in problems[:MAX_SHOWN])
    rest = f" And {len(problems) - MAX_SHOWN} more." if len(problems) > MAX_SHOWN else ""
    first = problems[0]
    codes = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}
    return LineError(codes.get(first["type"], "invalid_type"), shown + rest, param=str(first["loc"][0]))


def _sentence(problem: Any, known: Iterable[str]) -> str:
    place = ".".join(map(str, problem["loc"]))
    if problem["type"] == "missing":
        return f"The required field {place!r} is missing."
    if problem["type"] == "extra_forbidden":
        return f"Unknown field {place!r}.{nearest(place, known) or ' Leave it out.'}"
    return f"{place}: {problem['msg']}, got {problem['input']!r:.60}."

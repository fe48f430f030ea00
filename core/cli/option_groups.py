"""Lets a command take groups of options as dataclasses, so that each option is declared once for all commands."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter
from typing import Any, get_type_hints


def expand_groups(command: Callable[..., int]) -> Callable[..., int]:
    """`command` with every parameter that is annotated with a dataclass replaced by that dataclass's fields.

    Field annotations are `Annotated[type, typer.Option(...)]`. Two groups must not share a field name.
    """
    plain: list[Parameter] = []
    groups: dict[str, type[Any]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            assert isinstance(parameter.annotation, type)
            groups[parameter.name] = parameter.annotation
        else:
            plain.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
    parameters = [*plain, *(p for group in groups.values() for p in _parameters(group))]

    @functools.wraps(command)
    def expanded(**values: Any) -> int:
        made = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        return command(**values, **made)

    del expanded.__wrapped__
    expanded.__annotations__ = {}
    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return expanded


def _parameters(group: type[Any]) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = Parameter.empty if field.default is MISSING else field.default
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name])

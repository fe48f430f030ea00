"""Whether an object implements the hooks: names, marks and signatures, with the nearest right name for a wrong one.

It looks at functions and calls none. What the hooks return is checked in `isoinfer.backends.answer_check`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from isoinfer.backends.hookspecs import HOOKS, PROJECT

_PREFIX = "isoinfer_backend"
_MARK = f"{PROJECT}_impl"
_PLAIN = inspect.Parameter.POSITIONAL_OR_KEYWORD


def check_plugin(plugin: object) -> None:
    """Check every hook of `plugin`. Raises TypeError that lists all that is wrong."""
    problems: list[str] = []
    seen: set[str] = set()
    for name, function, mark in _candidates(plugin):
        hook = str((mark or {}).get("specname") or name)
        if hook in seen:
            problems.append(f"{hook} is implemented twice")
        problems.extend(_problems(hook, function, mark))
        seen.add(hook if hook in HOOKS else nearest(hook, HOOKS) or hook)
    problems.extend(f"hook {hook} is missing" for hook in HOOKS if hook not in seen)
    if problems:
        raise TypeError("; ".join(problems))


def nearest(name: str, known: Any) -> str | None:
    """The name in `known` that looks most like `name`, or None if none is near."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def _candidates(plugin: object) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any] | None]]:
    """Every function that is marked as a hook or is named like one: (name, function, pluggy's mark or None)."""
    for name in dir(plugin):
        function = getattr(plugin, name, None)
        if not inspect.isroutine(function):
            continue
        mark = getattr(function, _MARK, None)
        if isinstance(mark, dict):
            yield name, function, mark
        elif name.startswith(_PREFIX):
            yield name, function, None


def _problems(hook: str, function: Callable[..., Any], mark: dict[str, Any] | None) -> Iterator[str]:
    if hook not in HOOKS:
        guess = nearest(hook, HOOKS)
        yield f"unknown hook {hook}: " + (f"did you mean {guess}?" if guess else f"the hooks are {', '.join(HOOKS)}")
        return
    if mark is None:
        yield f"{hook} lacks the decorator @hookimpl (from isoinfer.backends.hookspecs import hookimpl)"
    elif mark.get("wrapper") or mark.get("hookwrapper"):
        yield f"{hook} is a wrapper: a backend answers its hooks itself"
    if not _same_parameters(function, HOOKS[hook]):
        yield f"{hook} has the wrong signature: yours is {_signature(function)}, the hook is {_signature(HOOKS[hook])}"


def _same_parameters(function: Callable[..., Any], hook: Callable[..., Any]) -> bool:
    # Exact: pluggy itself would drop parameters that are missing, keyword-only or have a default, and
    # a create() that silently never sees the user's config is a worse surprise than a refusal.
    try:
        mine = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    plain = all(p.kind is _PLAIN and p.default is inspect.Parameter.empty for p in mine)
    return plain and [p.name for p in mine] == list(inspect.signature(hook).parameters)


def _signature(function: Callable[..., Any]) -> str:
    try:
        return str(inspect.signature(function)).replace("'", "")
    except (TypeError, ValueError):
        return "(unreadable)"

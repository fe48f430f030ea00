"""The four forms of a completion prompt: text, token ids, a list of texts, a list of lists of token ids."""

from __future__ import annotations

from typing import Any, TypeGuard

from isoinfer.batch.line_error import LineError

Prompt = str | list[int]


def split_prompts(prompt: object) -> list[Prompt]:
    """The prompts of one body, at least one. LineError for anything that is none of the four forms."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise _wrong(f"got {type(prompt).__name__}")
    if not prompt:
        raise LineError("invalid_prompt", "The prompt is an empty list. Give at least one prompt.", param="prompt")
    if _is_ids(prompt):
        return [prompt]
    for i, item in enumerate(prompt):
        if not isinstance(item, str) and not (isinstance(item, list) and item and _is_ids(item)):
            raise _wrong(f"prompt[{i}] is {item!r:.60}")
        if isinstance(item, str) is not isinstance(prompt[0], str):
            raise _wrong("texts and token ids are mixed")
    return list(prompt)


def _is_ids(items: list[Any]) -> TypeGuard[list[int]]:
    return all(isinstance(item, int) and not isinstance(item, bool) for item in items)


def _wrong(detail: str) -> LineError:
    return LineError(
        "invalid_prompt",
        f"The prompt must be a string, a list of strings, a list of token ids or a list of such lists; {detail}.",
        param="prompt",
    )

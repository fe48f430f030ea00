"""Chat messages of a request body, checked, with the text parts of a message joined. Templates see plain strings."""

from __future__ import annotations

from typing import Any

from isoinfer.batch.line_error import LineError
from isoinfer.batch.validation import nearest

KNOWN_FIELDS = frozenset(
    {"role", "content", "name", "refusal", "reasoning_content", "tool_calls", "tool_call_id", "function_call", "audio"}
)


def plain_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages for a chat template. LineError for an unknown field, a missing role, or content that is no text."""
    return [_plain(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _plain(message: dict[str, Any], place: str) -> dict[str, Any]:
    for name in message:
        if name not in KNOWN_FIELDS:
            raise LineError(
                "unknown_parameter",
                f"{place} has the unknown field {name!r}.{nearest(name, KNOWN_FIELDS)}",
                param=place,
            )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise LineError("invalid_messages", f"{place} needs a role, such as 'user'; got {role!r:.60}.", param=place)
    if message.get("content") is None and role != "assistant":
        raise LineError("invalid_messages", f"{place} has no content. Give it a string.", param=place)
    kept = {name: value for name, value in message.items() if value is not None}
    return {**kept, "content": _text(message.get("content"), place)}


def _text(content: object, place: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part(part, f"{place}.content[{i}]") for i, part in enumerate(content))
    raise LineError(
        "invalid_messages", f"{place}.content must be a string or a list of parts, got {content!r:.60}.", param=place
    )


def _part(part: object, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("text") if isinstance(part, dict) else None
    if kind == "text" and isinstance(text, str):
        return text
    if isinstance(kind, str) and kind != "text":
        raise LineError("not_supported", f"{place} has the type {kind!r}; only 'text' is supported.", param=place)
    raise LineError(
        "invalid_messages", f'{place} must be {{"type": "text", "text": ...}}, got {part!r:.60}.', param=place
    )

"""Chat messages of a request body, checked: OpenAI's fields only, and text only. Parts stay parts: the chat
template knows whether the model reads them or wants one text.
"""

from __future__ import annotations

from typing import Any

from isoinfer.batch.line_error import LineError
from isoinfer.batch.validation import nearest
from isoinfer.errors import RequestError
from isoinfer.frontend.chat_template import check_messages

KNOWN_FIELDS = frozenset(
    {"role", "content", "name", "refusal", "reasoning_content", "tool_calls", "tool_call_id", "function_call"}
)


def template_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without null fields. LineError for an unknown field, a missing role, or content that is no text."""
    for index, message in enumerate(messages):
        _check_fields(message, f"messages[{index}]")
    try:
        check_messages(messages)
    except RequestError as error:
        raise LineError("invalid_messages", str(error), param="messages") from None
    return [{k: v for k, v in message.items() if v is not None or k == "content"} for message in messages]


def _check_fields(message: dict[str, Any], place: str) -> None:
    for name in message:
        if name not in KNOWN_FIELDS:
            hint = nearest(name, KNOWN_FIELDS)
            raise LineError("unknown_parameter", f"{place} has the unknown field {name!r}.{hint}", param="messages")
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise LineError(
                "not_supported",
                f"{place} has a part of type {kind!r}, which is not supported yet; only 'text' is.",
                param="messages",
            )

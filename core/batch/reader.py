"""Reads a batch file line by line. Holds one line at a time, whatever the file's size; a longer one is dropped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, BinaryIO

from isoinfer.batch.line_error import LineError, unreadable

MAX_LINE_BYTES = 64 * 2**20
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line that is not blank. `number` counts from 1, blank lines included. `raw` None: it was too long."""

    number: int
    raw: bytes | None

    def name(self, settings: str) -> str:
        """The unique tail of the ids that belong to this line, with this content, answered under `settings`."""
        return blake2b(f"{self.number}:{settings}:".encode() + (self.raw or b"").strip(), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A line as JSON. `custom_id` is None if it has no usable one; `error` says what is wrong with the line."""

    name: str
    number: int
    custom_id: str | None
    data: dict[str, Any]
    error: LineError | None = None


def read_lines(file: BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """The lines of `file` from where it stands, without the blank ones."""
    number = 0
    while raw := file.readline(max_bytes):
        number += 1
        if number == 1:
            raw = raw.removeprefix(BOM)
        too_long = len(raw) >= max_bytes and not raw.endswith(b"\n")
        if too_long:
            _skip_rest(file, max_bytes)
        if too_long or raw.strip():
            yield Line(number=number, raw=None if too_long else raw)


def _skip_rest(file: BinaryIO, max_bytes: int) -> None:
    while (rest := file.readline(max_bytes)) and not rest.endswith(b"\n"):
        pass


def open_line(line: Line, settings: str) -> Envelope:
    """Parse a line's JSON and find its custom_id. Never raises: what is wrong is in `error`."""
    name = line.name(settings)
    try:
        data = _json_object(line)
        return Envelope(name=name, number=line.number, custom_id=_custom_id(data, line.number), data=data)
    except LineError as error:
        return Envelope(name=name, number=line.number, custom_id=None, data={}, error=error)


def _custom_id(data: dict[str, Any], number: int) -> str:
    custom_id = data.get("custom_id")
    if custom_id is None:
        raise unreadable("missing_required_parameter", number, "custom_id is missing. Give each line its own.")
    if not isinstance(custom_id, str) or not custom_id:
        raise unreadable("invalid_custom_id", number, f"custom_id must be a non-empty string, got {custom_id!r:.80}.")
    return custom_id


def _json_object(line: Line) -> dict[str, Any]:
    if line.raw is None:
        raise unreadable("line_too_long", line.number, f"it is longer than {MAX_LINE_BYTES // 2**20} MiB.")
    try:
        data = json.loads(line.raw.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise unreadable("invalid_json_line", line.number, f"not valid JSON: {reason}.") from None
    if not isinstance(data, dict):
        raise unreadable("invalid_json_line", line.number, f"not a JSON object but {type(data).__name__}.")
    return data


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")

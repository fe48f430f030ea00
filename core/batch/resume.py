"""Continues an output file: which input lines it already answers, and where its last whole line ends.

The output is in input order, one record per line that is not blank, so record k answers the k-th such line.
Both files are walked side by side; a record must answer its line's custom_id, its very content, and be
answered under the same settings. Nothing is kept but the set of ids seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from isoinfer.batch.reader import Line, open_line
from isoinfer.batch.records import RECORD_START, record_id
from isoinfer.batch.seen_ids import SeenIds
from isoinfer.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What the output file holds: whole records, how many of them are errors, and the bytes they fill."""

    lines: int = 0
    failed: int = 0
    end: int = 0


def resume(output: BinaryIO, lines: Iterator[Line], seen: SeenIds, names: tuple[str, str], settings: str) -> Done:
    """Take from `lines` those that `output` answers, noting their ids in `seen`.

    A torn last record is not counted (writing goes on at `end`). `names`: input and output, for messages.
    Raises UserError if the output is not the beginning of an answer to this input; neither file is changed.
    """
    num_lines = num_failed = end = 0
    for raw in output:
        if not raw.endswith(b"\n"):
            _check_torn(raw, names)
            break
        num_lines += 1
        record = _record(raw, num_lines, names)
        _match(record, next(lines, None), num_lines, seen, names, settings)
        num_failed += record["error"] is not None
        end += len(raw)
    return Done(lines=num_lines, failed=num_failed, end=end)


def _record(raw: bytes, number: int, names: tuple[str, str]) -> dict[str, Any]:
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or not {"custom_id", "response", "error"} <= set(record):
        raise _mismatch(f"line {number} of {names[1]} is not a batch result", names)
    return record


def _match(
    record: dict[str, Any], line: Line | None, number: int, seen: SeenIds, names: tuple[str, str], settings: str
) -> None:
    if line is None:
        raise _mismatch(f"{names[1]} has {number} lines or more, {names[0]} has only {number - 1}", names)
    opened, found = open_line(line, settings), record["custom_id"]
    expected = opened.custom_id
    if expected != found:
        raise _mismatch(
            f"line {number} of {names[1]} answers custom_id {found!r:.60}, but line {line.number} of {names[0]} has "
            f"{expected!r:.60}",
            names,
        )
    if record.get("id") != record_id(opened.name):
        raise _mismatch(
            f"line {number} of {names[1]} was answered with another body than line {line.number} of {names[0]} now "
            "has, or by another model, dtype or quantization",
            names,
        )
    if expected is not None:
        seen.add(expected, line.number)


def _check_torn(raw: bytes, names: tuple[str, str]) -> None:
    """A killed run leaves a piece of a record; a crashed machine may leave zeros. Anything else is not ours to cut."""
    ours = raw.startswith(RECORD_START) or RECORD_START.startswith(raw) or not raw.strip(b"\0")
    if not ours:
        raise _mismatch(f"the last line of {names[1]} is not a batch result", names)


def _mismatch(what: str, names: tuple[str, str]) -> UserError:
    return UserError(
        f"{names[1]} exists and does not continue {names[0]}: {what}. Give another output file, or --overwrite to "
        "replace it."
    )

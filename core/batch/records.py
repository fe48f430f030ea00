"""The lines of the output file, in OpenAI's batch output format, as bytes.

An answered line has a response with status 200 and no error. A line whose body was refused has both the
response that the online API would give (status and error body) and the error; a line that is no request
at all has only the error. Ids are derived from the line and the settings it is answered under, so that a
repeated run names the same things and one that continues a file sees whether it continues the same job.
"""

from __future__ import annotations

import json
from typing import Any

from isoinfer.batch.line_error import LineError

RECORD_START = b'{"id": "batch_req_'
"""How every record begins: what a torn last line must begin with to be taken for one of ours."""


def record_id(name: str) -> str:
    """The id of the record of the line called `name`."""
    return f"batch_req_{name}"


def answer_record(name: str, custom_id: str | None, body: dict[str, Any]) -> bytes:
    """The record of an answered line."""
    return _record(name, custom_id, _response(200, name, body), None)


def error_record(name: str, custom_id: str | None, error: LineError) -> bytes:
    """The record of a line that failed."""
    response = None
    if error.status is not None:
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        detail = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
        response = _response(error.status, name, {"error": detail})
    return _record(name, custom_id, response, {"code": error.code, "message": str(error)})


def _response(status: int, name: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"status_code": status, "request_id": f"req_{name}", "body": body}


def _record(name: str, custom_id: str | None, response: Any, error: dict[str, str] | None) -> bytes:
    record = {
        "id": record_id(name),
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    try:
        line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can only escape
        line = json.dumps(record, allow_nan=False).encode()
    return line + b"\n"

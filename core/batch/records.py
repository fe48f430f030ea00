"""The lines of the output file, in OpenAI's batch output format, as bytes.

An answered line has a response with status 200 and no error. A line whose body was refused has both the
response that the online API would give (status and error body) and the error; a line that is no request
at all has only the error. Ids are derived from the line, so that a repeated run names the same things.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

from isoinfer.batch.line_error import LineError

RECORD_START = b'{"id": "batch_req_'
"""How every record begins: what a torn last line must begin with to be taken for one of ours."""


def line_name(number: int, custom_id: str | None) -> str:
    """The unique tail of the ids that belong to one line."""
    key = f"{number}:{custom_id}".encode("utf-8", "surrogatepass")
    return blake2b(key, digest_size=12).hexdigest()


def answer_record(number: int, custom_id: str | None, body: dict[str, Any]) -> bytes:
    """The record of an answered line."""
    return _record(number, custom_id, _response(200, number, custom_id, body), None)


def error_record(number: int, custom_id: str | None, error: LineError) -> bytes:
    """The record of a line that failed."""
    response = None
    if error.status is not None:
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        detail = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
        response = _response(error.status, number, custom_id, {"error": detail})
    return _record(number, custom_id, response, {"code": error.code, "message": str(error)})


def _response(status: int, number: int, custom_id: str | None, body: dict[str, Any]) -> dict[str, Any]:
    return {"status_code": status, "request_id": f"req_{line_name(number, custom_id)}", "body": body}


def _record(number: int, custom_id: str | None, response: Any, error: dict[str, str] | None) -> bytes:
    record = {
        "id": f"batch_req_{line_name(number, custom_id)}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    try:
        line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can only escape
        line = json.dumps(record, allow_nan=False).encode()
    return line + b"\n"

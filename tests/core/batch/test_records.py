"""The output format, to the key."""

from __future__ import annotations

import json

from isoinfer.batch.line_error import LineError, unreadable
from isoinfer.batch.records import RECORD_START, answer_record, error_record


def test_an_answered_line():
    raw = answer_record("f00", "a", {"x": "é"})
    record = json.loads(raw)
    assert raw.startswith(RECORD_START)
    assert raw.endswith(b"\n")
    assert "é".encode() in raw
    assert list(record) == ["id", "custom_id", "response", "error"]
    assert record["custom_id"] == "a"
    assert record["response"]["status_code"] == 200
    assert record["response"]["body"] == {"x": "é"}
    assert record["response"]["request_id"].startswith("req_")
    assert record["error"] is None


def test_a_refused_body_has_the_online_answer_and_the_error():
    record = json.loads(error_record("f00", "a", LineError("invalid_value", "no", param="n")))
    assert record["response"]["status_code"] == 400
    assert record["response"]["body"] == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}
    }
    assert record["error"] == {"code": "invalid_value", "message": "no"}


def test_a_line_that_is_no_request_has_only_the_error():
    raw = error_record("f00", None, unreadable("invalid_json_line", 4, "bad"))
    record = json.loads(raw)
    assert raw.startswith(RECORD_START)
    assert (record["custom_id"], record["response"]) == (None, None)
    assert record["error"] == {"code": "invalid_json_line", "message": "Line 4: bad"}


def test_ids_are_those_of_the_line():
    record = json.loads(answer_record("f00", "a", {}))
    assert (record["id"], record["response"]["request_id"]) == ("batch_req_f00", "req_f00")


def test_a_lone_surrogate_is_escaped():
    assert json.loads(error_record("f00", "\ud800", LineError("c", "m")))["custom_id"] == "\ud800"

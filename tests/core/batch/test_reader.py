"""Lines are read one at a time; what is wrong with one is said, not raised."""

from __future__ import annotations

import io

import pytest

from isoinfer.batch.reader import Line, open_line, read_lines


def _lines(raw: bytes, max_bytes: int = 100) -> list[tuple[int, bytes | None]]:
    return [(line.number, line.raw) for line in read_lines(io.BytesIO(raw), max_bytes)]


def test_blank_lines_are_skipped_and_counted():
    assert _lines(b"\n a \n\t\r\nb") == [(2, b" a \n"), (4, b"b")]


def test_a_byte_order_mark_is_no_part_of_the_first_line():
    assert _lines(b"\xef\xbb\xbf{}\n{}\n") == [(1, b"{}\n"), (2, b"{}\n")]


@pytest.mark.parametrize("length", [10, 11, 25, 30])
def test_a_line_too_long_is_dropped_whole(length):
    assert _lines(b"x" * length + b"\ny\n", max_bytes=10) == [(1, None), (2, b"y\n")]


def test_a_line_that_just_fits_is_kept():
    assert _lines(b"x" * 9 + b"\ny\n", max_bytes=10) == [(1, b"x" * 9 + b"\n"), (2, b"y\n")]


@pytest.mark.parametrize(
    ("raw", "code", "said"),
    [
        (b"nonsense\n", "invalid_json_line", "not valid JSON"),
        (b'{"a": 1', "invalid_json_line", "not valid JSON"),
        (b"[1]", "invalid_json_line", "not a JSON object but list"),
        (b'{"custom_id": NaN}', "invalid_json_line", "NaN is not JSON"),
        (b"\xff{}", "invalid_json_line", "decode byte"),
        (b'{"a":' + b"[" * 200_000, "invalid_json_line", "nested too deeply"),
        (b"{}", "missing_required_parameter", "custom_id is missing"),
        (b'{"custom_id": null}', "missing_required_parameter", "custom_id is missing"),
        (b'{"custom_id": 7}', "invalid_custom_id", "got 7"),
        (b'{"custom_id": ""}', "invalid_custom_id", "non-empty"),
        (None, "line_too_long", "64 MiB"),
    ],
)
def test_what_is_wrong_is_said_with_the_line_number(raw, code, said):
    envelope = open_line(Line(number=12, raw=raw), "")
    assert envelope.custom_id is None
    assert envelope.error is not None
    assert envelope.error.code == code
    assert "Line 12: " in str(envelope.error)
    assert said in str(envelope.error)
    assert envelope.error.status is None


def test_a_good_line_gives_its_id_and_data():
    envelope = open_line(Line(number=1, raw='{"custom_id": "é", "x": 1}'.encode()), "")
    assert (envelope.custom_id, envelope.data["x"], envelope.error) == ("é", 1, None)


def test_a_lines_name_depends_on_its_place_its_content_and_the_settings():
    names = [
        Line(number=number, raw=raw).name(settings)
        for number in (1, 2)
        for raw in (b'{"a": 1}', b'{"a": 2}', None)
        for settings in ("model", "other")
    ]
    assert len(set(names)) == len(names)
    assert Line(number=1, raw=b'{"a": 1}\n').name("model") == names[0], "the line's end is not its content"

"""A killed run goes on where it was, wherever it was killed; foreign files are left alone."""

from __future__ import annotations

import pytest

from isoinfer.errors import UserError


@pytest.fixture
def lines(completion):
    return [completion("a", "p1"), "", "nonsense", completion("c", "é2"), completion("a", "dup"), completion("e", "p1")]


def test_resumes_at_every_byte_of_the_last_line(files, lines, make_engine):
    files.write(*lines)
    whole = [{**r, "response": None} for r in files.run(make_engine())]
    raw = files.output.read_bytes()
    start = raw.rstrip(b"\n").rindex(b"\n") + 1
    for end in range(start, len(raw) + 1):
        files.output.write_bytes(raw[:end])
        engine = make_engine()
        assert [{**r, "response": None} for r in files.run(engine)] == whole
        assert engine.prompts == ([] if end == len(raw) else ["p1"])


def test_finished_lines_are_kept_to_the_byte_and_not_repeated(files, lines, make_engine):
    files.write(*lines)
    files.run(make_engine())
    raw = files.output.read_bytes()
    cut = raw.index(b"\n", raw.index(b"\n") + 1) + 1
    files.output.write_bytes(raw[:cut])
    engine = make_engine()
    with files.job() as job:
        assert (job.tally.resumed, job.tally.failed, job.finished) == (2, 1, False)
        job.run(engine)
    assert files.output.read_bytes()[:cut] == raw[:cut]
    assert engine.prompts == ["é2", "p1"]
    # The id that an earlier run has answered is still a duplicate.
    assert files.records()[3]["error"]["code"] == "duplicate_custom_id"


def test_nothing_to_do_is_known_before_an_engine_is_there(files, lines, make_engine):
    files.write(*lines)
    files.run(make_engine())
    with files.job() as job:
        assert job.finished
        assert (job.tally.resumed, job.tally.failed) == (5, 2)


def test_lines_added_to_the_input_are_answered(files, completion, make_engine):
    files.write(completion("a", "p1"))
    files.run(make_engine())
    files.write(completion("a", "p1"), completion("b", "q1"))
    engine = make_engine()
    assert len(files.run(engine)) == 2
    assert engine.prompts == ["q1"]


def test_zeros_that_a_crash_left_are_no_record(files, completion, make_engine):
    files.write(completion("a", "p1"), completion("b", "q1"))
    files.run(make_engine())
    raw = files.output.read_bytes()
    files.output.write_bytes(raw[: raw.index(b"\n") + 1] + b"\0" * 700)
    assert [r["custom_id"] for r in files.run(make_engine())] == ["a", "b"]


@pytest.mark.parametrize(
    "content",
    [
        b"my diary\n",
        b"my diary",
        b'{"custom_id": "a"}\n',
        b'{"id": "x", "custom_id": "z", "response": null, "error": null}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_a_foreign_output_file_is_refused_untouched(files, completion, make_engine, content):
    files.write(completion("a", "p1"))
    files.output.write_bytes(content)
    with pytest.raises(UserError, match=r"--overwrite"):
        files.run(make_engine())
    assert files.output.read_bytes() == content


def test_an_input_that_got_shorter_is_refused(files, completion, make_engine):
    files.write(completion("a", "p1"), completion("b", "p1"))
    files.run(make_engine())
    files.write(completion("a", "p1"))
    with pytest.raises(UserError, match="has only 1"):
        files.run(make_engine())


def test_overwrite_starts_again(files, completion, make_engine):
    files.write(completion("a", "p1"))
    files.output.write_bytes(b"my diary, long enough to show behind a shorter file\n" * 50)
    engine = make_engine()
    assert [r["custom_id"] for r in files.run(engine, overwrite=True)] == ["a"]
    assert engine.prompts == ["p1"]


def test_a_changed_line_or_setting_is_not_taken_for_the_one_that_was_answered(files, completion, make_engine):
    files.write(completion("a", "p1"), completion("b", "q1"))
    files.run(make_engine())
    before = files.output.read_bytes()
    with pytest.raises(UserError, match="by another model, dtype or quantization"), files.job(settings="int8"):
        pass
    files.write(completion("a", "p1"), completion("b", "changed"))
    with pytest.raises(UserError, match=r"line 2 of .* was answered with another body than line 2"), files.job():
        pass
    assert files.output.read_bytes() == before

"""Files that cannot be used are refused before any work; two runs do not share an output."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from isoinfer.batch.job import BatchJob
from isoinfer.errors import UserError


def test_a_missing_input(files):
    with pytest.raises(UserError, match="no input file"), files.job():
        pass
    assert not files.output.exists()


def test_a_folder_as_input_or_output(files, tmp_path):
    files.write("x")
    for source, target in ((tmp_path, files.output), (files.input, tmp_path)):
        with pytest.raises(UserError, match="is a folder"), BatchJob(str(source), str(target)):
            pass


def test_no_folder_for_the_output(files, tmp_path):
    files.write("x")
    with pytest.raises(UserError, match="does not exist"), BatchJob(str(files.input), str(tmp_path / "no" / "out")):
        pass


def test_input_and_output_are_one_file(files):
    files.write("x")
    with pytest.raises(UserError, match="same file"), BatchJob(str(files.input), str(files.input)):
        pass
    assert files.input.read_text() == "x\n"


def test_a_device_as_output(files):
    files.write("x")
    with pytest.raises(UserError, match="not a regular file"), BatchJob(str(files.input), "/dev/null"):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="no advisory locks there")
def test_a_second_run_on_the_same_output_waits_its_turn(files, completion, make_engine):
    files.write(completion("a", "p1"))
    with files.job() as first:
        with pytest.raises(UserError, match="Another run"), files.job(overwrite=True):
            pass
        first.run(make_engine())
    assert len(files.records()) == 1


def test_an_empty_input_gives_an_empty_output(files, make_engine):
    files.write()
    assert files.run(make_engine()) == []


def test_stdin_as_input_can_be_resumed_too(files, completion, make_engine, monkeypatch):
    text = "\n".join(completion(i, "p1") for i in "abc").encode()
    for _ in range(2):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text)))
        engine = make_engine()
        with BatchJob("-", str(files.output)) as job:
            assert job.tally.total is None
            job.run(engine)
        raw = files.output.read_bytes()
        files.output.write_bytes(raw[: raw.index(b"\n") + 1])
    assert engine.prompts == ["p1", "p1"]

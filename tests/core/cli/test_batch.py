"""`batch` on a tiny model, from the command line: records, resuming, interrupts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def _line(custom_id, prompt, **body):
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 4, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def _chat(custom_id, *messages, **body):
    body = {"messages": [{"role": r, "content": c} for r, c in messages], "temperature": 0, "max_tokens": 4, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def _records(path):
    raw = path.read_bytes()
    assert raw.endswith(b"\n")
    return [json.loads(line) for line in raw.splitlines()]


def _num_lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture
def batch(isoinfer, engine_args, tmp_path):
    def go(source, *args):
        return isoinfer("batch", *engine_args, "-i", str(source), "-o", str(tmp_path / "out.jsonl"), *args)

    return go


def test_every_kind_of_line(batch, write_lines, tmp_path):
    source = write_lines(
        _chat("chat", ("system", "s"), ("user", "hello"), logprobs=True, top_logprobs=2),
        _chat("parts", ("user", [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}])),
        _line("many", ["abc", "xyz"], n=1, echo=True, logprobs=1),
        _line("ids", [1, 2, 3], echo=True, max_tokens=0, logprobs=0),
        "nonsense",
        _line("chat", "a duplicate"),
        _line("field", "x", temprature=1),
        _line("long", "x" * 300),
        _line("empty", ""),
        _line("vocabulary", [999]),
        _chat("template", ("tool", "x")),
        _line("last", "abc", n=2, temperature=1, seed=3),
    )
    ran = batch(source, "--json")
    records = _records(tmp_path / "out.jsonl")
    assert ran.code == 1
    codes = {r["custom_id"]: r["error"] and r["error"]["code"] for r in records if r["custom_id"] != "chat"}
    assert codes == {
        "parts": None,
        "many": None,
        "ids": None,
        None: "invalid_json_line",
        "field": "unknown_parameter",
        "long": "invalid_request",
        "empty": "invalid_request",
        "vocabulary": "invalid_request",
        "template": "invalid_messages",
        "last": None,
    }
    assert [r["error"] and r["error"]["code"] for r in records if r["custom_id"] == "chat"] == [
        None,
        "duplicate_custom_id",
    ]
    many = records[2]["response"]["body"]["choices"]
    assert [choice["text"][:3] for choice in many] == ["abc", "xyz"]
    assert len(many[0]["logprobs"]["tokens"]) == 3 + 4
    scored = records[3]["response"]["body"]["choices"][0]["logprobs"]["token_logprobs"]
    assert (scored[0], len(scored)) == (None, 3)
    summary = json.loads(ran.out)
    assert (summary["lines"], summary["failed"], summary["resumed"]) == (12, 7, 0)
    assert "12 lines (5 answered, 7 failed)" in ran.err


def test_answers_are_those_of_one_request_at_a_time(batch, write_lines, tmp_path, isoinfer, engine_args):
    prompts = ["abc", "the quick brown fox", "q", "zzzzzzzzzzzzzzzzzzzzzzzz"]
    source = write_lines(*(_line(str(i), prompt) for i, prompt in enumerate(prompts)))
    assert batch(source).code == 0
    texts = [r["response"]["body"]["choices"][0]["text"] for r in _records(tmp_path / "out.jsonl")]
    for prompt, text in zip(prompts, texts, strict=True):
        single = isoinfer("generate", *engine_args, "--temperature", "0", "--max-tokens", "4", prompt)
        assert single.out == text + "\n"


def test_a_finished_file_needs_no_model(batch, write_lines, tmp_path, isoinfer, engine_args):
    source = write_lines(_line("a", "abc"))
    batch(source)
    before = (tmp_path / "out.jsonl").read_bytes()
    gone = f"/gone/{Path(engine_args[engine_args.index('-m') + 1]).name}"
    again = ("-i", str(source), "-o", str(tmp_path / "out.jsonl"), "--dtype", "float32")
    ran = isoinfer("batch", "-m", gone, *again)
    assert ran.code == 0, ran.err
    other = isoinfer("batch", "-m", "/gone/other", *again)
    assert (other.code, "by another model" in other.err) == (2, True)
    assert "1 of them from an earlier run" in ran.err
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_an_output_of_another_input_is_a_usage_error(batch, write_lines, tmp_path):
    batch(write_lines(_line("a", "abc")))
    ran = batch(write_lines(_line("b", "abc")))
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert "--overwrite" in ran.err
    assert batch(write_lines(_line("b", "abc")), "--overwrite").code == 0
    assert _records(tmp_path / "out.jsonl")[0]["custom_id"] == "b"


def test_a_full_disk_is_one_line_and_a_valid_file(batch, write_lines, tmp_path, monkeypatch):
    from isoinfer.batch.writer import LineWriter

    write = LineWriter.write

    def write_one(self, line):
        if self.num_lines == 1:
            raise OSError(28, "No space left on device")
        write(self, line)

    monkeypatch.setattr(LineWriter, "write", write_one)
    source = write_lines(_line("a", "abc"), _line("b", "abc"))
    ran = batch(source)
    assert ran.code == 2
    assert "error: Cannot go on writing" in ran.err
    assert "No space left on device" in ran.err
    assert [r["custom_id"] for r in _records(tmp_path / "out.jsonl")] == ["a"]


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT cannot be sent to a child there")
def test_a_real_interrupt_and_a_real_kill_are_resumed(batch, write_lines, tmp_path, engine_args):
    """Ctrl-C, then SIGKILL, then a run to the end: every line once, in order."""
    source = write_lines(*(_line(str(i), "abc", max_tokens=200, ignore_eos=True) for i in range(40)))
    out = tmp_path / "out.jsonl"
    # A shell's background job, such as a CI step may be, starts with SIGINT ignored, and its children inherit that.
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from isoinfer.cli.app import main; sys.exit(main())"
    command = [
        sys.executable,
        "-c",
        code,
        "batch",
        *engine_args,
        "--max-num-seqs",
        "1",
        "-i",
        str(source),
        "-o",
        str(out),
    ]
    for stop, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        before = _num_lines(out)
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                while _num_lines(out) <= before:
                    assert process.poll() is None
                    time.sleep(0.005)
                process.send_signal(stop)
                _, err = process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode == code
        assert "Traceback" not in err
        assert before < _num_lines(out) < 40
        if stop is signal.SIGINT:
            assert "again to go on" in err
            assert len(_records(out)) == _num_lines(out)
    assert batch(source).code == 0
    assert [r["custom_id"] for r in _records(out)] == [str(i) for i in range(40)]
    assert len({r["response"]["body"]["choices"][0]["text"] for r in _records(out)}) == 1

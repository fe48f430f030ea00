"""Every user error is one line on stderr and an exit code; help needs no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from isoinfer.errors import DeviceLost


def _assert_one_line_error(ran, code, said):
    assert ran.code == code
    assert ran.out == ""
    lines = ran.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert said in lines[0]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["generate", "--modle", "x", "hi"], "--model"),
        (["generate", "hi"], "--model"),
        (["generate", "-m", "x", "--top-k", "many", "hi"], "--top-k"),
        (["generat"], "generat"),
        (["chat", "-m", "x", "a", "b"], "unexpected extra argument"),
        (["batch", "-m", "x", "-i", "in"], "--output-file"),
        (["generate", "-m", "/no/such/model", "hi"], "/no/such/model"),
        (["generate", "-m", "x", "--temperature", "-1", "hi"], "temperature"),
        (["generate", "-m", "x", "--max-tokens", "0", "hi"], "max_tokens"),
        (["generate", "-m", "x"], "holds no prompt"),
        (["chat", "-m", "x"], "message is empty"),
        (["explain", "--backend", "cqu"], "did you mean 'cpu'?"),
        (["explain", "--dtype", "int3"], "int3"),
    ],
)
def test_a_usage_error_is_one_line_and_code_2(isoinfer, args, said):
    _assert_one_line_error(isoinfer(*args), 2, said)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--backend", "cqu"], "did you mean 'cpu'?"),
        (["--kv-memory", "much"], "'much'"),
        (["--max-num-seqs", "0"], "max_num_seqs"),
        (["--quantization", "int99"], "int99"),
    ],
)
def test_an_impossible_engine_is_one_line_and_code_2(isoinfer, engine_args, args, said):
    _assert_one_line_error(isoinfer("generate", *engine_args, *args, "hi"), 2, said)


def test_a_folder_without_config(isoinfer, tmp_path):
    _assert_one_line_error(isoinfer("generate", "-m", str(tmp_path), "hi"), 2, "config.json")


def test_nothing_is_help(isoinfer):
    ran = isoinfer()
    assert ran.code == 0
    assert all(name in ran.out for name in ("generate", "chat", "batch", "backends", "explain"))


def test_version(isoinfer):
    assert isoinfer("--version").out.startswith("isoinfer ")


@pytest.mark.parametrize(("error", "code"), [(DeviceLost("the device is gone"), 1), (KeyboardInterrupt(), 130)])
def test_what_ends_a_command_from_outside_has_its_own_code(isoinfer, engine_args, monkeypatch, error, code):
    def step(self):
        raise error

    monkeypatch.setattr("isoinfer.llm.LLM.step", step)
    ran = isoinfer("generate", *engine_args, "--json", "hi")
    assert (ran.code, ran.out) == (code, "")
    assert ("the device is gone" if code == 1 else "interrupted") in ran.err
    assert "Traceback" not in ran.err


def test_a_reader_that_leaves_early_is_no_traceback(isoinfer, monkeypatch):
    def refuse(*args):
        raise BrokenPipeError

    monkeypatch.setattr("isoinfer.cli.backends.print_table", refuse)
    silenced = []
    monkeypatch.setattr("isoinfer.cli.command._silence_stdout", lambda: silenced.append(True))
    assert isoinfer("backends").code == 1
    assert silenced == [True]


def test_help_loads_no_torch():
    program = (
        "import sys; from isoinfer.cli.app import run; code = run(['generate', '--help']); "
        "assert code == 0; assert not {'torch', 'numpy', 'tokenizers', 'jinja2'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)


def test_an_output_that_cannot_be_written_is_one_line(isoinfer, monkeypatch):
    def refuse(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("isoinfer.cli.backends.print_table", refuse)
    monkeypatch.setattr("isoinfer.cli.command._silence_stdout", lambda: None)
    ran = isoinfer("backends")
    assert (ran.code, ran.err) == (1, "error: the output cannot be written: No space left on device\n")

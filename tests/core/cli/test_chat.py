"""`chat` on a tiny model: one answer, from an argument or a pipe."""

from __future__ import annotations

import json

import pytest

GREEDY = ("--temperature", "0", "--max-tokens", "6")


@pytest.fixture
def answer(model):
    """What the model says, by the Python API."""
    from isoinfer import LLM, SamplingParams

    def ask(*messages):
        llm = LLM(model, dtype="float32", kv_memory="4MiB", threads=1)
        (output,) = llm.chat(list(messages), SamplingParams(temperature=0, max_tokens=6))
        llm.close()
        return output.outputs[0].text

    return ask


def test_argument_and_pipe_give_the_streamed_answer(isoinfer, engine_args, answer):
    text = answer({"role": "user", "content": "hello"})
    ran = isoinfer("chat", *engine_args, *GREEDY, "hello")
    assert (ran.code, ran.out) == (0, text + "\n")
    assert isoinfer("chat", *engine_args, *GREEDY, stdin="hello\n").out == ran.out
    assert "6 output tokens in" in ran.err


def test_the_system_message_counts(isoinfer, engine_args, answer):
    text = answer({"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"})
    ran = isoinfer("chat", *engine_args, *GREEDY, "--system", "be brief", "--json", "hello")
    value = json.loads(ran.out)
    assert value["message"] == {"role": "assistant", "content": text}
    assert value["usage"]["completion_tokens"] == 6
    assert value["error"] is None


def test_a_message_too_long_fails_with_code_1(isoinfer, engine_args):
    ran = isoinfer("chat", *engine_args, "--json", "x" * 300)
    assert ran.code == 1
    assert json.loads(ran.out)["error"].startswith("The prompt has")
    assert "error: The prompt has" in ran.err


def test_a_model_without_a_chat_template(isoinfer, model, tmp_path):
    import shutil

    bare = shutil.copytree(model, tmp_path / "bare")
    (bare / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    ran = isoinfer("chat", "-m", str(bare), "--kv-memory", "4MiB", "hello")
    assert ran.code == 1
    assert "no chat template" in ran.err
    assert "Traceback" not in ran.err


def test_json_is_not_for_conversations(typist, capsys):
    from isoinfer.cli.app import run

    typist()
    assert run(["chat", "-m", "x", "--json"]) == 2
    assert "--json needs a message" in capsys.readouterr().err

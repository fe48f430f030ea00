"""`generate` on a tiny model: same answers by every way in, bad prompts beside good ones."""

from __future__ import annotations

import json

import pytest

GREEDY = ("--temperature", "0", "--max-tokens", "6")


@pytest.fixture
def expected(model):
    from isoinfer import LLM, SamplingParams

    llm = LLM(model, dtype="float32", kv_memory="4MiB", threads=1)
    params = SamplingParams(temperature=0, max_tokens=6)
    texts = [output.outputs[0].text for output in llm.generate(["abc", "xyz"], params)]
    llm.close()
    return texts


def test_one_prompt_prints_its_text_alone(isoinfer, engine_args, expected):
    ran = isoinfer("generate", *engine_args, *GREEDY, "abc")
    assert (ran.code, ran.out) == (0, expected[0] + "\n")
    assert "1 request, 3 prompt tokens, 6 output tokens in" in ran.err.splitlines()[-1]


def test_arguments_file_and_stdin_are_the_same(isoinfer, engine_args, expected, tmp_path):
    (tmp_path / "prompts").write_text("abc\n\nxyz\n")
    ways = [
        isoinfer("generate", *engine_args, *GREEDY, "--json", "abc", "xyz"),
        isoinfer("generate", *engine_args, *GREEDY, "--json", "--prompts-file", str(tmp_path / "prompts")),
        isoinfer("generate", *engine_args, *GREEDY, "--json", stdin="abc\n\nxyz"),
    ]
    for ran in ways:
        lines = [json.loads(line) for line in ran.out.splitlines()]
        assert ran.code == 0
        assert [line["outputs"][0]["text"] for line in lines] == expected
        assert [(line["index"], line["prompt"], line["error"]) for line in lines] == [
            (0, "abc", None),
            (1, "xyz", None),
        ]
        assert lines[0]["usage"] == {
            "prompt_tokens": 3,
            "completion_tokens": 6,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 0},
        }


def test_a_bad_prompt_does_not_stop_the_others(isoinfer, engine_args, expected):
    ran = isoinfer("generate", *engine_args, *GREEDY, "abc", "", "x" * 300, "xyz")
    assert ran.code == 1
    assert ran.out == f"[1] abc\n{expected[0]}\n\n[4] xyz\n{expected[1]}\n\n"
    assert "error: prompt 2: The prompt is empty" in ran.err
    assert "error: prompt 3: The prompt has 300 tokens" in ran.err
    assert "4 requests (2 failed)" in ran.err


def test_a_single_bad_prompt(isoinfer, engine_args):
    ran = isoinfer("generate", *engine_args, "")
    assert (ran.code, ran.out) == (1, "")
    assert "error: The prompt is empty" in ran.err


def test_seed_n_and_logprobs(isoinfer, engine_args):
    args = ("generate", *engine_args, "--json", "-n", "2", "--seed", "7", "--max-tokens", "4", "--logprobs", "2", "abc")
    first, again = isoinfer(*args), isoinfer(*args)
    (line,) = map(json.loads, first.out.splitlines())
    assert first.out == again.out
    assert line["outputs"][0]["token_ids"] != line["outputs"][1]["token_ids"]
    assert [len(entry) in (2, 3) for entry in line["outputs"][0]["logprobs"]] == [True] * 4
    assert line["outputs"][0]["logprobs"][0][0]["token_id"] == line["outputs"][0]["token_ids"][0]


def test_many_completions_are_numbered(isoinfer, engine_args):
    out = isoinfer("generate", *engine_args, "-n", "2", "--max-tokens", "1", "--bad-words", "zz", "abc").out
    assert out.startswith("(1) ")
    assert "\n(2) " in out


@pytest.mark.parametrize(
    ("make", "said"), [(None, "No such file"), (b"\xff\xfe", "not UTF-8"), (b"\n \n", "holds no prompt")]
)
def test_an_unusable_prompts_file(isoinfer, tmp_path, make, said):
    path = tmp_path / "prompts"
    if make is not None:
        path.write_bytes(make)
    ran = isoinfer("generate", "-m", "x", "--prompts-file", str(path))
    assert ran.code == 2
    assert said in ran.err


def test_prompts_two_ways_at_once(isoinfer):
    assert "not both" in isoinfer("generate", "-m", "x", "--prompts-file", "y", "abc").err


def test_a_terminal_is_not_waited_for(isoinfer, typist, capsys):
    from isoinfer.cli.app import run

    typist()
    assert run(["generate", "-m", "x"]) == 2
    assert "There is no prompt" in capsys.readouterr().err

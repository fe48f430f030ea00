"""docs/add-a-backend.md says what is so: its code is the example's, and its command runs."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

from isoinfer.backends.hookspecs import HOOKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add-a-backend.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "toy_backend"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_plugin_shown_is_the_plugin() -> None:
    assert _blocks("python") == [(EXAMPLE / "isoinfer_toy" / "plugin.py").read_text(encoding="utf-8")]


def test_the_registration_shown_is_the_registration() -> None:
    shown = tomllib.loads(_blocks("toml")[0])["project"]
    real = tomllib.loads((EXAMPLE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert shown.items() <= real.items()
    assert shown["entry-points"] == {"isoinfer.backends": {"toy": "isoinfer_toy.plugin"}}


def test_the_table_has_each_hook_with_its_parameters() -> None:
    shown = re.findall(r"^\| `(isoinfer_backend_\w+\([\w, ]*\))`", PAGE, re.MULTILINE)
    assert shown == [f"{name}({', '.join(inspect.signature(hook).parameters)})" for name, hook in HOOKS.items()]


def test_the_probe_command_runs() -> None:
    (command,) = [line for block in _blocks("bash") for line in block.splitlines() if "backends.probe" in line]
    program, *arguments = shlex.split(command)
    assert program == "python"
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLE)}
    run = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    answer = json.loads(run.stdout)
    assert answer["descriptor"]["name"] == "toy"
    assert answer["devices"][0]["id"] == "host"


def test_what_it_links_to_in_the_project_is_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", PAGE) if link.startswith("../")]
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []

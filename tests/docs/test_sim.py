"""docs/sim.md says what is so: its commands run, its table has every option."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from isoinfer.backends.sim.faults import FaultPlan
from isoinfer.backends.sim.options import SimOptions
from isoinfer.cli.app import run

PAGE = (Path(__file__).parents[2] / "docs" / "sim.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ isoinfer (.*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shlex.split(command)) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown)["simulated"] if "--json" in command else shown.startswith("SIMULATED")


def test_the_table_has_every_option() -> None:
    shown = {name for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert shown == {field.name for kind in (SimOptions, FaultPlan) for field in fields(kind)} - {"faults"}

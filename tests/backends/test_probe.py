from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from isoinfer.backends.plugin_source import PluginSource
from isoinfer.backends.probe import USAGE, main
from isoinfer.backends.probe_result import from_json


def test_an_author_can_run_it_by_hand(plugins: Any, capsys: pytest.CaptureFixture[str]) -> None:
    module = plugins.good("chip")
    assert main([f"chip = {module}", "isotest-chip"]) == 0
    source = PluginSource(name="chip", value=module, distribution="isotest-chip", version="")
    assert from_json(capsys.readouterr().out, source).devices[0].description == "a chip"


def test_an_error_is_printed_and_is_the_exit_status(plugins: Any, capsys: pytest.CaptureFixture[str]) -> None:
    module = plugins.good("chip", devices="[]")
    assert main([f"chip={module}", "isotest-chip"]) == 1
    assert "isoinfer_backend_probe returned no device" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize("argv", [[], ["chip = m"], ["chip m", "dist"], ["chip = m", "dist", "file", "more"]])
def test_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert USAGE in capsys.readouterr().err


def test_it_is_a_program() -> None:
    run = subprocess.run([sys.executable, "-m", "isoinfer.backends.probe"], capture_output=True, text=True)
    assert run.returncode == 2
    assert USAGE in run.stderr

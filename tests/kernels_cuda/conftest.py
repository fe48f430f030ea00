"""One interpreted run of the sampling and remap kernels for all their tests, and one that compares bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def interpreted() -> dict[str, list[str]]:
    """What is wrong with each of these kernels under Triton's interpreter, by op."""
    return _run("interpret.py", "kernels_cuda")


@pytest.fixture(scope="session")
def bits() -> dict[str, list[str]]:
    """Where the bits of rows depend on something else, by op (see bits.py)."""
    return _run("bits.py", "kernels_cuda")


def _run(script: str, *arguments: str) -> dict[str, list[str]]:
    """What `script` finds, in a process of its own."""
    if sys.platform != "linux":
        pytest.skip("triton is for Linux")
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name(script)), *arguments]
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found

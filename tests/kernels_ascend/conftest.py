"""One interpreted run of the sampling kernels for all their tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def interpreted() -> dict[str, list[str]]:
    """What is wrong with each sampling kernel under Triton's interpreter, by op."""
    if sys.platform != "linux":
        pytest.skip("triton is for Linux")
    script = Path(__file__).parents[1] / "kernels_cuda" / "interpret.py"
    command = [sys.executable, "-W", "ignore", str(script), "kernels_ascend"]
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found

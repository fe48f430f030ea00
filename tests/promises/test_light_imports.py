"""What every command imports first is light: no torch before something is computed."""

from __future__ import annotations

import subprocess
import sys

import pytest

SEAM = "isoinfer.backends.descriptor isoinfer.backends.hookspecs isoinfer.backends.interface isoinfer.backends.registry"


@pytest.mark.parametrize("modules", ["isoinfer", SEAM, "isoinfer.backends.cpu.plugin", "isoinfer.cli.app"])
def test_no_torch_and_no_top_level_names_of_ours(modules: str) -> None:
    names = ("torch", "transformers", "core", "backends", "conformance", "kernels_cuda", "kernels_ascend")
    code = f"import sys, {', '.join(modules.split())}; print([n for n in {names} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")

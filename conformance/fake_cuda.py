"""Fake tensors of "cuda" on a torch without CUDA: the CUDA backend's own code, on no device.

Such a torch has no device guard for CUDA, and copies and slices of fake tensors ask for one. A guard that
does nothing is compiled against torch's headers (g++) and registered, once a process.
"""

from __future__ import annotations

import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from isoinfer.backends.descriptor import BackendConfig, DeviceInfo
from isoinfer.backends.interface import Backend
from isoinfer.conformance.fake_step import FakeRuntime, LaunchChecker

_GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace c10::impl { C10_REGISTER_GUARD_IMPL(CUDA, NoOpDeviceGuardImpl<DeviceType::CUDA>); }
"""


def fake_cuda(chip: str, runtime: FakeRuntime, launcher: LaunchChecker, *, deterministic: bool = False) -> Backend:
    """The CUDA backend as it is assembled for `chip` ("sm_90"), over a FakeRuntime of device "cuda"."""
    from isoinfer.backends.cuda.capability import assumed
    from isoinfer.backends.cuda.create import assemble

    assert runtime.device.type == "cuda", runtime.device
    device = DeviceInfo(id=chip, description=f"{chip}, fake tensors", score=0)
    return assemble(device, BackendConfig(deterministic=deterministic), assumed(chip), runtime, launcher)


@cache
def register_guard() -> None:
    """Nothing to do where torch has CUDA. Raises CalledProcessError if g++ fails."""
    if torch.version.cuda is not None:
        return
    home = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "guard.so"
        command = ["g++", "-std=c++20", "-shared", "-fPIC", "-w", "-x", "c++", "-", "-o", str(library)]
        command += [f"-I{home / 'include'}", f"-L{home / 'lib'}", "-lc10", f"-Wl,-rpath,{home / 'lib'}"]
        subprocess.run(command, input=_GUARD, text=True, check=True)
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]

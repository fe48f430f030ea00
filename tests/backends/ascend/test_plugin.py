"""The door: light, and honest on a machine without an NPU."""

from __future__ import annotations

import subprocess
import sys

from isoinfer.backends.ascend import plugin
from isoinfer.backends.descriptor import BACKEND_API, BackendConfig, DeviceInfo


def test_the_door_imports_no_torch() -> None:
    code = (
        "import sys; from isoinfer.backends.ascend import plugin; plugin.isoinfer_backend_probe(); "
        "print([name for name in ('torch', 'torch_npu', 'triton') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_hooks() -> None:
    descriptor = plugin.isoinfer_backend_descriptor()
    assert (descriptor.name, descriptor.api) == ("ascend", BACKEND_API)
    devices = plugin.isoinfer_backend_probe()
    assert devices
    assert plugin.isoinfer_backend_claims(devices[0]).profiles == ()
    device = DeviceInfo(id="0", description="", score=0)
    backend = plugin.isoinfer_backend_create(device, BackendConfig(assume="950"))
    assert backend.name == "ascend"

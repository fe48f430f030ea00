"""Backends whose kernels run in Triton's interpreter: the real providers and kernels, on host memory.

Start the process with TRITON_INTERPRET=1. The interpreter computes products of bfloat16 wrongly and
truncates where it stores bfloat16, so evidence is float16 and float32 only.
"""

from __future__ import annotations

import os

from isoinfer.backends.descriptor import BackendConfig, DeviceInfo
from isoinfer.backends.interface import Backend

DTYPES = ("float32", "float16")


def interpreted_cuda(chip: str, dtype: str = "float32") -> Backend:
    """The CUDA backend as it is assembled for `chip` ("sm_90"), interpreted. `dtype` float32 or float16."""
    assert dtype in DTYPES, f"{dtype} is no evidence under the interpreter"
    require_interpreter()
    from isoinfer.backends.cuda.capability import assumed
    from isoinfer.backends.cuda.create import assemble
    from isoinfer.backends.torch_device.runtime import HostRuntime
    from isoinfer.backends.torch_device.triton_launcher import TritonLauncher

    device = DeviceInfo(id=chip, description=f"{chip}, interpreted", score=0)
    return assemble(device, BackendConfig(dtype=dtype), assumed(chip), HostRuntime(), TritonLauncher())


def require_interpreter() -> None:
    """AssertionError outside of a process that was started for the interpreter."""
    assert os.environ.get("TRITON_INTERPRET") == "1", "start the process with TRITON_INTERPRET=1"

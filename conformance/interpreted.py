"""Backends whose kernels run in Triton's interpreter: the real providers and kernels, on host memory.

Start the process with TRITON_INTERPRET=1. The interpreter computes products of bfloat16 wrongly and
truncates where it stores bfloat16, so evidence is float16 and float32 only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from isoinfer.backends.descriptor import BackendConfig, DeviceInfo
from isoinfer.backends.interface import Backend

DTYPES = ("float32", "float16")


def interpreted_cuda(chip: str, dtype: str = "float32", *, deterministic: bool = False) -> Backend:
    """The CUDA backend as it is assembled for `chip` ("sm_90"), interpreted. `dtype` float32 or float16."""
    assert dtype in DTYPES, f"{dtype} is no evidence under the interpreter"
    require_interpreter()
    from isoinfer.backends.cuda.capability import assumed
    from isoinfer.backends.cuda.create import assemble
    from isoinfer.backends.torch_device.runtime import HostRuntime
    from isoinfer.backends.torch_device.triton_launcher import TritonLauncher

    device = DeviceInfo(id=chip, description=f"{chip}, interpreted", score=0)
    config = BackendConfig(dtype=dtype, deterministic=deterministic)
    return assemble(device, config, assumed(chip), HostRuntime(), TritonLauncher())


def interpreted_ascend(chip: str, dtype: str = "float32") -> Backend:
    """The Ascend backend as assembled for `chip` ("910B") under `--deterministic`, interpreted: our kernels alone.

    `dtype` float32 or float16. It has few cores: each then takes several items in turn, and fewer run idle.
    """
    assert dtype in DTYPES, f"{dtype} is no evidence under the interpreter"
    require_interpreter()
    from isoinfer.backends.ascend.create import assemble
    from isoinfer.backends.ascend.soc import assumed
    from isoinfer.backends.torch_device.runtime import HostRuntime
    from isoinfer.backends.torch_device.triton_launcher import TritonLauncher

    soc = replace(assumed(chip), cube_cores=3, vector_cores=5)
    config = BackendConfig(dtype=dtype, deterministic=True)
    device = DeviceInfo(id=chip, description=f"Ascend {chip}, interpreted", score=0)
    return assemble(device, config, soc, HostRuntime(), None, TritonLauncher(), lambda: False)


@contextmanager
def products_by_row() -> Iterator[None]:
    """Matrix products of kernels sum a tile over k in ascending order, for every row alike. For comparing bits.

    The interpreter's own products are numpy's, whose bits depend on where in a tile a row lies. Those of a chip's
    matrix unit do not.
    """
    require_interpreter()
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_dot(builder: Any, a: Any, b: Any, d: Any, *precision: Any) -> Any:
        a_MK, b_KN = a.data.astype(d.data.dtype), b.data.astype(d.data.dtype)
        sum_MN = np.zeros_like(d.data)
        for k in range(a_MK.shape[1]):
            sum_MN += a_MK[:, k, None] * b_KN[None, k]
        return TensorHandle(sum_MN + d.data, d.dtype.scalar)

    numpys = InterpreterBuilder.create_dot
    InterpreterBuilder.create_dot = create_dot
    try:
        yield
    finally:
        InterpreterBuilder.create_dot = numpys


def require_interpreter() -> None:
    """AssertionError outside of a process that was started for the interpreter."""
    assert os.environ.get("TRITON_INTERPRET") == "1", "start the process with TRITON_INTERPRET=1"

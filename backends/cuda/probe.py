"""Which NVIDIA GPUs are there, and in words why one is not usable. Cheap where there is no driver: no torch then."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from isoinfer.backends.cuda.capability import capability_of, refusal
from isoinfer.backends.descriptor import DeviceInfo

DRIVER = "libcuda.so.1"
SCORE = 100


def probe_cuda(
    load_driver: Callable[[str], object] = ctypes.CDLL,
    load: Callable[[str], Any] = import_module,
    find: Callable[[str], object | None] = find_spec,
) -> list[DeviceInfo]:
    """Every GPU as a device, or one device whose reason says what is missing. Tests pass their own doors."""
    try:
        load_driver(DRIVER)
    except OSError:
        return [_absent(f"no NVIDIA driver ({DRIVER} is not found)")]
    torch = load("torch")
    if torch.version.cuda is None:
        return [_absent(f"torch {torch.__version__} is built without CUDA: install a CUDA build of torch")]
    if find("triton") is None:
        return [_absent("triton is not installed: pip install 'isoinfer[cuda]'")]
    try:
        count = torch.cuda.device_count()
    except Exception as error:  # a driver too old for this torch raises here
        return [_absent(f"the driver does not work with torch {torch.__version__}: {_first_line(error)}")]
    if not count:
        return [_absent("the driver shows no GPU (CUDA_VISIBLE_DEVICES may hide them)")]
    return [_device(torch, index) for index in range(count)]


def _device(torch: Any, index: int) -> DeviceInfo:
    try:
        properties = torch.cuda.get_device_properties(index)
    except Exception as error:
        return DeviceInfo(id=str(index), description="NVIDIA GPU", score=0, reason=_first_line(error))
    memory = f"{properties.total_memory / (1 << 30):.0f} GiB"
    reason = refusal(properties.major, properties.minor)
    sm = "" if reason else f", {capability_of(properties.major, properties.minor).label}"
    return DeviceInfo(
        id=str(index), description=f"{properties.name}, {memory}{sm}", score=0 if reason else SCORE, reason=reason
    )


def _absent(reason: str) -> DeviceInfo:
    return DeviceInfo(id="0", description="NVIDIA GPU", score=0, reason=reason)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]

"""Which NPUs are there, and in words why one is not usable. torch_npu is imported only where there is a device."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from isoinfer.backends.ascend.soc import refusal, soc_of
from isoinfer.backends.descriptor import DeviceInfo

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
DEVICE_FILES = "davinci[0-9]*"
SCORE = 100


def probe_ascend(
    *,
    version_of: Callable[[str], str | None] | None = None,
    device_files: Callable[[], list[str]] | None = None,
    load: Callable[[], Any] | None = None,
) -> list[DeviceInfo]:
    """Every NPU as a device, or one device whose reason says what is missing. The arguments stand in for this machine:
    a distribution's version, the device files, and importing torch_npu."""
    reason = _packages(version_of or _version)
    if reason is None and not (device_files or _device_files)():
        reason = f"no NPU: there is no /dev/{DEVICE_FILES} (the driver is not loaded, or the container has no access)"
    if reason is not None:
        return [_absent(reason)]
    try:
        npu = (load or load_torch_npu)().npu
        count = npu.device_count()
    except Exception as error:  # torch wraps what its autoload raises in errors of its own
        return [_absent(load_failure(error))]
    if not count:
        return [_absent("torch_npu shows no NPU (ASCEND_RT_VISIBLE_DEVICES may hide them)")]
    return [_device(npu, index) for index in range(count)]


def _packages(version_of: Callable[[str], str | None]) -> str | None:
    """What is wrong with the installed packages."""
    torch, torch_npu = version_of("torch"), version_of("torch-npu")
    if torch_npu is None:
        return "torch_npu is not installed: pip install torch-npu, in the version of torch"
    if torch is None:
        return f"torch_npu {torch_npu} is installed, but no torch"
    if torch.split(".")[:2] != torch_npu.split(".")[:2]:
        return f"torch_npu {torch_npu} does not fit torch {torch}: install both in the same version"
    if "+cu" in torch:
        return f"torch {torch} is a CUDA build: torch_npu needs the CPU build of the same version"
    return None


def load_torch_npu() -> ModuleType:
    """Import torch without its autoload of backends, then torch_npu, so that an error is torch_npu's own."""
    with _no_autoload():
        importlib.import_module("torch")
    return importlib.import_module("torch_npu")


@contextmanager
def _no_autoload() -> Iterator[None]:
    before = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
        else:
            os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = before


def load_failure(error: BaseException) -> str:
    """One line for an import that failed: the library that is missing if it is one, and what to do."""
    texts, cause = [], error
    while cause is not None:
        texts.append(f"{cause}")
        cause = cause.__cause__  # type: ignore[assignment]
    library = re.search(r"(lib[\w+.-]+\.so[\w.]*): cannot open", " ".join(texts))
    what = f"{library[1]} is missing" if library else f"{type(error).__name__}: {error}".splitlines()[0]
    return (
        f"torch_npu cannot be loaded: {what}; install CANN and source its set_env.sh "
        f"(until then set {AUTOLOAD}=0, or torch itself cannot be imported)"
    )


def _device(npu: Any, index: int) -> DeviceInfo:
    try:
        name, number = npu.get_device_name(index), npu.get_soc_version()
        memory = npu.get_device_properties(index).total_memory / (1 << 30)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return DeviceInfo(id=str(index), description="Ascend NPU", score=0, reason=reason)
    reason_or_none = refusal(number, name)
    generation = "" if reason_or_none else f", Ascend {soc_of(number).name}"
    return DeviceInfo(
        id=str(index),
        description=f"{name}, {memory:.0f} GiB{generation}",
        score=0 if reason_or_none else SCORE,
        reason=reason_or_none,
    )


def _absent(reason: str) -> DeviceInfo:
    return DeviceInfo(id="0", description="Ascend NPU", score=0, reason=reason)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _device_files() -> list[str]:
    return [str(path) for path in Path("/dev").glob(DEVICE_FILES)]

"""What the probe says of machines that are not this one."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from isoinfer.backends.ascend.probe import AUTOLOAD, load_failure, probe_ascend

GOOD = {"torch": "2.13.0+cpu", "torch-npu": "2.13.0"}


def npu(number: int = 223, count: int = 1) -> Any:
    def properties(index: int) -> SimpleNamespace:
        return SimpleNamespace(total_memory=64 << 30)

    module = SimpleNamespace(
        device_count=lambda: count,
        get_device_name=lambda index: "Ascend910B3",
        get_soc_version=lambda: number,
        get_device_properties=properties,
    )
    return SimpleNamespace(npu=module)


def probe(versions: dict[str, str], files: int = 1, module: Any = None) -> list[Any]:
    def load() -> Any:
        if isinstance(module, Exception):
            raise module
        return module or npu()

    return probe_ascend(version_of=versions.get, device_files=lambda: ["davinci"] * files, load=load)


def test_a_device_is_named_with_its_memory_and_generation() -> None:
    (device,) = probe(GOOD)
    assert device.available
    assert (device.description, device.score) == ("Ascend910B3, 64 GiB, Ascend 910B", 100)


@pytest.mark.parametrize(
    ("versions", "files", "module", "reason"),
    [
        ({"torch": "2.13.0"}, 1, None, "torch_npu is not installed: pip install torch-npu"),
        ({"torch": "2.11.0", "torch-npu": "2.13.0"}, 1, None, "torch_npu 2.13.0 does not fit torch 2.11.0"),
        ({"torch": "2.13.0+cu130", "torch-npu": "2.13.0"}, 1, None, "is a CUDA build"),
        (GOOD, 0, None, "no NPU: there is no /dev/davinci"),
        (GOOD, 1, npu(count=0), "ASCEND_RT_VISIBLE_DEVICES may hide them"),
        (GOOD, 1, npu(number=202), "is an Ascend 310P"),
        (GOOD, 1, npu(number=999), "SoC number 999"),
        (GOOD, 1, OSError("libascendcl.so: cannot open shared object file"), "libascendcl.so is missing; install CANN"),
    ],
    ids=["not-installed", "versions", "cuda-build", "no-device", "hidden", "old-soc", "unknown-soc", "no-cann"],
)
def test_each_lack_is_one_clear_line(versions: dict[str, str], files: int, module: Any, reason: str) -> None:
    (device,) = probe(versions, files, module)
    assert not device.available
    assert reason in device.reason
    assert "\n" not in device.reason


def test_the_autoload_that_wraps_an_error_is_seen_through() -> None:
    inner = ImportError("libhccl.so: cannot open shared object file: No such file or directory")
    outer = RuntimeError("Failed to load the backend extension: torch_npu.\nMore")
    outer.__cause__ = inner
    assert "libhccl.so is missing" in load_failure(outer)
    assert f"{AUTOLOAD}=0" in load_failure(outer)
    assert "RuntimeError: Failed to load" in load_failure(RuntimeError("Failed to load it\nMore"))


def test_nothing_is_imported_and_no_variable_stays_set_without_a_device() -> None:
    before = os.environ.get(AUTOLOAD)

    def load() -> Any:
        raise AssertionError("imported")

    probe_ascend(version_of=GOOD.get, device_files=list, load=load)
    assert os.environ.get(AUTOLOAD) == before

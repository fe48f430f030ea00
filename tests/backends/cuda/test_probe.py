"""Every reason why there is no GPU is one clear line; with one, it is a device with a score."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isoinfer.backends.cuda.probe import probe_cuda


def torch_like(cuda: str | None = "13.0", count: Any = 1, **properties: Any) -> Any:
    def device_count() -> int:
        if isinstance(count, Exception):
            raise count
        return int(count)

    fields = {"name": "NVIDIA H200", "major": 9, "minor": 0, "total_memory": 141 << 30, **properties}
    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=cuda),
        cuda=SimpleNamespace(device_count=device_count, get_device_properties=lambda index: SimpleNamespace(**fields)),
    )


def probe(torch: Any, driver: bool = True, triton: bool = True) -> list[Any]:
    def load_driver(name: str) -> object:
        if not driver:
            raise OSError(f"{name}: cannot open shared object file")
        return object()

    def load(name: str) -> Any:
        assert driver, "torch was loaded although there is no driver"
        return torch

    return probe_cuda(load_driver, load, lambda name: object() if triton else None)


def test_a_gpu_is_a_device() -> None:
    (device,) = probe(torch_like())
    assert device.available
    assert device.score > 10, "the CPU would win auto"
    assert device.description == "NVIDIA H200, 141 GiB, sm_90"


@pytest.mark.parametrize(
    ("options", "torch", "reason"),
    [
        ({"driver": False}, torch_like(), "no NVIDIA driver (libcuda.so.1 is not found)"),
        ({}, torch_like(cuda=None), "torch 2.13.0 is built without CUDA: install a CUDA build of torch"),
        ({"triton": False}, torch_like(), "triton is not installed: pip install 'isoinfer[cuda]'"),
        ({}, torch_like(count=0), "the driver shows no GPU (CUDA_VISIBLE_DEVICES may hide them)"),
        (
            {},
            torch_like(count=RuntimeError("driver too old\nmore")),
            "the driver does not work with torch 2.13.0: RuntimeError: driver too old",
        ),
        (
            {},
            torch_like(major=7, minor=0),
            "compute capability 7.0 is older than 8.0, the oldest that bfloat16 kernels run on",
        ),
    ],
)
def test_what_is_missing_is_said_in_one_line(options: dict[str, bool], torch: Any, reason: str) -> None:
    (device,) = probe(torch, **options)
    assert not device.available
    assert device.reason == reason
    assert device.score == 0

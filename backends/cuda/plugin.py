"""The CUDA backend's door: four hooks. torch is loaded where there is a driver, Triton when it is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoinfer.backends.cuda.probe import probe_cuda
from isoinfer.backends.descriptor import BACKEND_API, BackendConfig, BackendDescriptor, Claims, DeviceInfo
from isoinfer.backends.hookspecs import hookimpl

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend


@hookimpl
def isoinfer_backend_descriptor() -> BackendDescriptor:
    """Who this is."""
    return BackendDescriptor(
        name="cuda", vendor="NVIDIA", api=BACKEND_API, distribution="isoinfer", summary="NVIDIA GPUs from sm_80 on"
    )


@hookimpl
def isoinfer_backend_probe() -> list[DeviceInfo]:
    """Every GPU, or the reason why there is none."""
    return probe_cuda()


@hookimpl
def isoinfer_backend_create(device: DeviceInfo, config: BackendConfig) -> Backend:
    """A backend on one GPU, or one that only says what it would do on the chip that `config.assume` names."""
    from isoinfer.backends.cuda.create import assume, create

    return create(device, config) if config.assume is None else assume(config)


@hookimpl
def isoinfer_backend_claims(device: DeviceInfo) -> Claims:
    """Nothing is claimed: no run on a device is on record."""
    return Claims()

"""The Ascend backend's door: four hooks. Light: torch_npu is loaded where there is a device, or when it is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoinfer.backends.ascend.probe import probe_ascend
from isoinfer.backends.descriptor import BACKEND_API, BackendConfig, BackendDescriptor, Claims, DeviceInfo
from isoinfer.backends.hookspecs import hookimpl

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend


@hookimpl
def isoinfer_backend_descriptor() -> BackendDescriptor:
    """Who this is."""
    return BackendDescriptor(
        name="ascend",
        vendor="Huawei",
        api=BACKEND_API,
        distribution="isoinfer",
        summary="Huawei Ascend NPUs: 910B, 910C, 950",
    )


@hookimpl
def isoinfer_backend_probe() -> list[DeviceInfo]:
    """Every NPU, or the reason why there is none."""
    return probe_ascend()


@hookimpl
def isoinfer_backend_create(device: DeviceInfo, config: BackendConfig) -> Backend:
    """A backend on one NPU, or one that only says what it would do on the chip that `config.assume` names."""
    from isoinfer.backends.ascend.create import assume, create

    return create(device, config) if config.assume is None else assume(config)


@hookimpl
def isoinfer_backend_claims(device: DeviceInfo) -> Claims:
    """Nothing is claimed: no run on a device is on record."""
    return Claims()

"""The simulated backend's door: four hooks. Light; torch is loaded only when a backend is created."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoinfer.backends.descriptor import BACKEND_API, BackendConfig, BackendDescriptor, Claims, DeviceInfo
from isoinfer.backends.hookspecs import hookimpl
from isoinfer.backends.sim.chips import CHIPS

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend

NEVER_AUTO = -1
"""A score below that of any real device."""


@hookimpl
def isoinfer_backend_descriptor() -> BackendDescriptor:
    """Who this is."""
    return BackendDescriptor(
        name="sim",
        vendor="none",
        api=BACKEND_API,
        distribution="isoinfer",
        summary="Simulated device: tests and planning; computes nothing",
    )


@hookimpl
def isoinfer_backend_probe() -> list[DeviceInfo]:
    """A device without a pace of its own, and one for each chip that is known by numbers."""
    plain = DeviceInfo(id="0", description="simulated", score=NEVER_AUTO)
    return [
        plain,
        *(
            DeviceInfo(id=name, description=f"simulated: {chip.description}", score=NEVER_AUTO)
            for name, chip in CHIPS.items()
        ),
    ]


@hookimpl
def isoinfer_backend_create(device: DeviceInfo, config: BackendConfig) -> Backend:
    """A simulated device."""
    from isoinfer.backends.sim.backend import SimBackend

    return SimBackend(device, config)


@hookimpl
def isoinfer_backend_claims(device: DeviceInfo) -> Claims:
    """Nothing: what is simulated certifies nothing."""
    return Claims()

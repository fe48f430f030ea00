"""The CPU backend's door: four hooks. Light; torch is loaded only when a backend is created."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoinfer.backends.cpu.probe import probe_host
from isoinfer.backends.descriptor import BACKEND_API, BackendConfig, BackendDescriptor, Claims, DeviceInfo
from isoinfer.backends.hookspecs import hookimpl

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend


@hookimpl
def isoinfer_backend_descriptor() -> BackendDescriptor:
    """Who this is."""
    return BackendDescriptor(
        name="cpu",
        vendor="any",
        api=BACKEND_API,
        distribution="isoinfer",
        summary="Reference backend: the host's own cores",
    )


@hookimpl
def isoinfer_backend_probe() -> list[DeviceInfo]:
    """The host is always there; its score is low so that any accelerator wins `auto`."""
    host = probe_host()
    return [DeviceInfo(id="0", description=host.summary(), score=10)]


@hookimpl
def isoinfer_backend_create(device: DeviceInfo, config: BackendConfig) -> Backend:
    """A backend on the host's cores."""
    from isoinfer.backends.cpu.backend import CpuBackend

    return CpuBackend(device, config)


@hookimpl
def isoinfer_backend_claims(device: DeviceInfo) -> Claims:
    """Nothing is claimed until the conformance profiles exist to prove it."""
    return Claims()

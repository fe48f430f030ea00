"""The four hooks of the toy backend. Light: no torch here, so that listing backends stays fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoinfer.backends.cpu import plugin as cpu
from isoinfer.backends.descriptor import BackendConfig, BackendDescriptor, Claims, DeviceInfo
from isoinfer.backends.hookspecs import hookimpl

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend


@hookimpl
def isoinfer_backend_descriptor() -> BackendDescriptor:
    """Who we are. `name` is the entry point's name, `distribution` the package's, `api` what we were written for."""
    return BackendDescriptor(
        name="toy",
        vendor="isoinfer examples",
        api=(0, 3),
        distribution="isoinfer-toy-backend",
        summary="the CPU backend with one op of its own",
    )


@hookimpl
def isoinfer_backend_probe() -> list[DeviceInfo]:
    """One device, the host, if the CPU backend can drive it. The score is below any real one: `auto` never picks us."""
    host = cpu.isoinfer_backend_probe()[0]
    return [DeviceInfo(id="host", description=f"toy on {host.description}", score=-100, reason=host.reason)]


@hookimpl
def isoinfer_backend_create(device: DeviceInfo, config: BackendConfig) -> Backend:
    """Heavy imports belong here."""
    from isoinfer_toy.backend import ToyBackend

    host = cpu.isoinfer_backend_probe()[0]
    return ToyBackend(device, cpu.isoinfer_backend_create(host, config))


@hookimpl
def isoinfer_backend_claims(device: DeviceInfo) -> Claims:
    """Nothing, until a conformance report says otherwise."""
    return Claims()

"""The four hooks of a backend plugin. All are called; none is optional; none may import torch at import time.

What this is not: the backend's own surface (that is `Backend` in `isoinfer.backends.interface`). A plugin
is a light module, named by an entry point of the group `isoinfer.backends`, that implements each hook:

    from isoinfer.backends.hookspecs import hookimpl

    @hookimpl
    def isoinfer_backend_descriptor(): ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from isoinfer.backends.descriptor import BackendConfig, BackendDescriptor, Claims, DeviceInfo
    from isoinfer.backends.interface import Backend

PROJECT = "isoinfer"
GROUP = "isoinfer.backends"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


# `firstresult`: a plugin has its own manager, so one implementation answers, and its answer is not wrapped in a list.
@hookspec(firstresult=True)
def isoinfer_backend_descriptor() -> BackendDescriptor:  # type: ignore[empty-body]
    """Who this backend is. Must not touch a device; called before anything else."""


@hookspec(firstresult=True)
def isoinfer_backend_probe() -> list[DeviceInfo]:  # type: ignore[empty-body]
    """The devices of this machine, best first; for what is not there, one entry with the reason in words.

    Cheap: no allocation, no context that outlives the call if the vendor allows it. Never empty.
    """


@hookspec(firstresult=True)
def isoinfer_backend_create(device: DeviceInfo, config: BackendConfig) -> Backend:  # type: ignore[empty-body]
    """The backend on `device`. Raise BackendError for an option in `config` that cannot be honoured."""


@hookspec(firstresult=True)
def isoinfer_backend_claims(device: DeviceInfo) -> Claims:  # type: ignore[empty-body]
    """The conformance profiles claimed on `device`, and the failures that are known."""


HOOKS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        hook.__name__: hook
        for hook in (
            isoinfer_backend_descriptor,
            isoinfer_backend_probe,
            isoinfer_backend_create,
            isoinfer_backend_claims,
        )
    }
)

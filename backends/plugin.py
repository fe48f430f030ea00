"""One loaded plugin: its own pluggy manager, validated when made, and every answer checked.

One manager per plugin, since in a shared one a raising probe stops all, and `create` would be called in each.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import pluggy

from isoinfer.backends import hookspecs
from isoinfer.backends.answer_check import api_refusal, check_backend, check_claims, check_descriptor, check_devices
from isoinfer.backends.descriptor import BackendConfig, BackendDescriptor, Claims, DeviceInfo
from isoinfer.backends.plugin_check import check_plugin
from isoinfer.backends.plugin_source import PluginSource
from isoinfer.errors import BackendError

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend


class Plugin:
    """The hooks of one plugin. Making it imports the module and asks for the descriptor, nothing more.

    Raises whatever the module raises at import, and TypeError if its hooks or descriptor are wrong.
    """

    def __init__(self, source: PluginSource) -> None:
        implementation = source.load()
        check_plugin(implementation)
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        manager.register(implementation, name=source.name)
        manager.check_pending()
        self._hook = manager.hook
        answer = self._hook.isoinfer_backend_descriptor()
        self.descriptor: BackendDescriptor = check_descriptor(
            answer, name=source.name, distribution=source.distribution
        )

    def require_api(self) -> None:
        """Raises BackendError if the plugin was written for a seam that this isoinfer does not have."""
        refusal = api_refusal(self.descriptor.api)
        if refusal is not None:
            raise BackendError(refusal)

    def probe(self) -> tuple[DeviceInfo, ...]:
        """The devices. Raises TypeError for a wrong answer, or what the plugin raises."""
        return check_devices(self._hook.isoinfer_backend_probe())

    def create(self, device: DeviceInfo, config: BackendConfig) -> Backend:
        """The backend on `device`. Raises TypeError for a wrong answer, or what the plugin raises."""
        backend = self._hook.isoinfer_backend_create(device=device, config=config)
        return check_backend(backend, name=self.descriptor.name)

    def claims(self, device: DeviceInfo) -> Claims:
        """What is claimed on `device`. Raises TypeError for a wrong answer, or what the plugin raises."""
        return check_claims(self._hook.isoinfer_backend_claims(device=device))


def error_text(error: BaseException) -> str:
    """An exception of a plugin as one line. Our own errors are already sentences and lose their class name."""
    if isinstance(error, BackendError):
        return str(error)
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"  # str() adds file and line
    return " ".join("".join(traceback.format_exception_only(error)).split())

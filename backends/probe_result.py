"""What looking at one plugin gave: its descriptor, its devices, or the reason why not. Travels as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from isoinfer.backends.answer_check import check_descriptor, check_devices
from isoinfer.backends.descriptor import BackendDescriptor, DeviceInfo
from isoinfer.backends.plugin import Plugin, error_text
from isoinfer.backends.plugin_source import PluginSource
from isoinfer.errors import BackendError


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """`error` is None exactly if `devices` is not empty. A refused or failed plugin may still have a descriptor."""

    descriptor: BackendDescriptor | None = None
    devices: tuple[DeviceInfo, ...] = ()
    error: str | None = None


def probe_plugin(source: PluginSource, load: Callable[[PluginSource], Plugin] = Plugin) -> ProbeResult:
    """Load and probe one plugin in this process. Whatever it raises becomes the result's error.

    Only KeyboardInterrupt passes: plugins also raise SystemExit, and native ones their own BaseException.
    """
    descriptor = None
    stage = "it cannot be loaded"
    try:
        plugin = load(source)
        descriptor, stage = plugin.descriptor, "its probe failed"
        plugin.require_api()
        return ProbeResult(descriptor=descriptor, devices=plugin.probe())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # The handshake's refusal is a sentence of its own.
        refused = descriptor is not None and isinstance(error, BackendError)
        text = error_text(error) if refused else f"{stage}: {error_text(error)}"
        return ProbeResult(descriptor=descriptor, error=text)


def to_json(result: ProbeResult) -> str:
    """The result as one line."""
    return json.dumps(asdict(result))


def from_json(text: str, source: PluginSource) -> ProbeResult:
    """The inverse, checked as strictly as a live answer. Raises ValueError or TypeError for anything else."""
    data = json.loads(text)
    if not isinstance(data, dict) or set(data) != {"descriptor", "devices", "error"}:
        raise ValueError("not a probe result")
    descriptor = _descriptor(data["descriptor"], source)
    if data["error"] is None:
        if descriptor is None:
            raise ValueError("a probe result needs a descriptor or an error")
        devices = check_devices([DeviceInfo(**device) for device in data["devices"]])
        return ProbeResult(descriptor=descriptor, devices=devices)
    return ProbeResult(descriptor=descriptor, error=str(data["error"]))


def _descriptor(fields: dict[str, Any] | None, source: PluginSource) -> BackendDescriptor | None:
    if fields is None:
        return None
    descriptor = BackendDescriptor(**{**fields, "api": tuple(fields["api"])})
    return check_descriptor(descriptor, name=source.name, distribution=source.distribution)

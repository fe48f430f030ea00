"""Choosing a device: from `NAME[:DEVICE]` in words, or the best one. Pure functions over records."""

from __future__ import annotations

from collections.abc import Sequence

from isoinfer.backends.descriptor import DeviceInfo
from isoinfer.backends.plugin_check import nearest
from isoinfer.backends.plugin_source import PluginSource
from isoinfer.backends.registry_records import PluginRecord, Selection
from isoinfer.errors import BackendError

AUTO = "auto"


def parse_spec(spec: str) -> tuple[str, str | None]:
    """`NAME[:DEVICE]` or `auto` as (name, device or None). Raises BackendError."""
    name, colon, device = spec.strip().partition(":")
    if not name or (colon and (not device or name == AUTO)):
        raise BackendError(f"backend {spec!r} is not NAME, NAME:DEVICE or {AUTO}")
    return name, device if colon else None


def find_source(name: str, sources: Sequence[PluginSource]) -> PluginSource:
    """The plugin called `name`. Raises BackendError if there is none, or more than one."""
    found = [source for source in sources if source.name == name]
    if len(found) == 1:
        return found[0]
    if found:
        labels = " and ".join(source.label for source in found)
        raise BackendError(f"backend {name!r} is provided by {labels}: uninstall all but one")
    names = sorted({source.name for source in sources})
    if not names:
        raise BackendError(f"there is no backend {name!r}, nor any other: is isoinfer installed with pip?")
    guess = nearest(name.lower(), names)
    hint = f"did you mean {guess!r}? " if guess else ""
    raise BackendError(f"there is no backend {name!r}: {hint}the backends are {', '.join(names)}, or {AUTO}")


def assume_device(record: PluginRecord) -> Selection:
    """The first device of `record`, there or not. Raises BackendError where the plugin is broken."""
    _require_working(record)
    return Selection(source=record.source, device=record.devices[0])


def choose_device(record: PluginRecord, device: str | None) -> Selection:
    """The device of `record` that is called `device`, or its best one. Raises BackendError with the reason."""
    _require_working(record)
    found = _best(record.devices) if device is None else _named(record, device)
    if found is None:
        reasons = "; ".join(f"{d.id}: {d.reason}" for d in record.devices)
        raise BackendError(f"backend {record.name!r} has no available device: {reasons}")
    if not found.available:
        raise BackendError(f"device {found.id!r} of backend {record.name!r} is not available: {found.reason}")
    return Selection(source=record.source, device=found)


def choose_best(records: Sequence[PluginRecord]) -> Selection:
    """The available device with the highest score. Raises BackendError if there is none, or two plugins tie."""
    choices = [
        Selection(source=record.source, device=best)
        for record in records
        if record.error is None and (best := _best(record.devices)) is not None
    ]
    if not choices:
        raise BackendError("no backend has an available device: " + ("; ".join(map(_why_not, records)) or "none found"))
    top = max(choice.device.score for choice in choices)
    winners = [choice for choice in choices if choice.device.score == top]
    if len(winners) > 1:
        labels = " and ".join(f"{winner.spec} ({winner.source.label})" for winner in winners)
        raise BackendError(f"{labels} have the same score {top}: choose one with --backend NAME[:DEVICE]")
    return winners[0]


def _require_working(record: PluginRecord) -> None:
    if record.error is not None:
        raise BackendError(f"backend {record.name!r} ({record.source.label}) cannot be used: {record.error}")


def _best(devices: Sequence[DeviceInfo]) -> DeviceInfo | None:
    # Equal devices of one plugin are no conflict (eight equal chips): the first in its order wins.
    return max((d for d in devices if d.available), key=lambda d: d.score, default=None)


def _named(record: PluginRecord, device: str) -> DeviceInfo:
    # An id may itself hold the backend's name ("chip:1"): then the whole spec is the id.
    for found in record.devices:
        if found.id in (device, f"{record.name}:{device}"):
            return found
    available = [d for d in record.devices if d.available]
    if device.isascii() and device.isdigit() and int(device) < len(available):
        return available[int(device)]
    ids = ", ".join(d.id for d in record.devices)
    count = f"{len(available)} available" if available else "none available"
    raise BackendError(f"backend {record.name!r} has no device {device!r}: its devices are {ids} ({count})")


def _why_not(record: PluginRecord) -> str:
    if record.error is not None:
        return f"{record.name}: {record.error}"
    return "; ".join(f"{record.name}:{d.id}: {d.reason}" for d in record.devices)

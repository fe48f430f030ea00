"""What the registry tells: plain data for tables, messages and choices. No behaviour beyond derived fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from isoinfer.backends.descriptor import BackendDescriptor, DeviceInfo
from isoinfer.backends.plugin_source import PluginSource
from isoinfer.backends.probe_result import ProbeResult

DeviceStatus = Literal["available", "unavailable", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRecord:
    """One plugin and what looking at it gave. `cached`: the look is an earlier one, from the disk."""

    source: PluginSource
    result: ProbeResult
    cached: bool = False

    @property
    def name(self) -> str:
        """The entry point's name, which is what `--backend` takes."""
        return self.source.name

    @property
    def distribution(self) -> str:
        """The package that installed it."""
        return self.source.distribution

    @property
    def version(self) -> str:
        """That package's version."""
        return self.source.version

    @property
    def descriptor(self) -> BackendDescriptor | None:
        """Who it is, or None if it could not be loaded."""
        return self.result.descriptor

    @property
    def devices(self) -> tuple[DeviceInfo, ...]:
        """Its devices, available or not. Empty if there is an error."""
        return self.result.devices

    @property
    def error(self) -> str | None:
        """Why the whole plugin cannot be used, or None."""
        return self.result.error


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """One line of `isoinfer backends`. A broken plugin has one line, without device and score."""

    backend: str
    distribution: str
    version: str
    api: str
    device: str | None
    description: str
    score: int | None
    status: DeviceStatus
    reason: str | None
    cached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A choice: one device of one plugin."""

    source: PluginSource
    device: DeviceInfo

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.source.name

    @property
    def spec(self) -> str:
        """What to give to `--backend` to make this choice again."""
        return f"{self.name}:{self.device.id}"


def device_rows(record: PluginRecord) -> list[DeviceRow]:
    """The lines of one plugin, in the order of its probe."""
    if record.error is not None:
        return [_row(record, None)]
    return [_row(record, device) for device in record.devices]


def _row(record: PluginRecord, device: DeviceInfo | None) -> DeviceRow:
    descriptor = record.descriptor
    status: DeviceStatus = "broken" if device is None else "available" if device.available else "unavailable"
    return DeviceRow(
        backend=record.name,
        distribution=record.distribution,
        version=record.version,
        api="" if descriptor is None else ".".join(map(str, descriptor.api)),
        device=device.id if device else None,
        description=device.description if device else descriptor.summary if descriptor else "",
        score=device.score if device else None,
        status=status,
        reason=device.reason if device else record.error,
        cached=record.cached,
    )

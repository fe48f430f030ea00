"""The registry: which backends are installed, what they can drive here, and making one.

It knows no backend by name. Plugins of other packages are looked at in processes of their own
(`auto`, `records`, `devices`); one that is named is loaded here, and no other is touched. A plugin
that is broken, hangs or crashes is a record with the reason, and never stops another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from isoinfer.backends.descriptor import BackendConfig, Claims
from isoinfer.backends.plugin import Plugin, error_text
from isoinfer.backends.plugin_source import PluginSource, find_sources
from isoinfer.backends.probe_cache import ProbeCache, default_cache_dir
from isoinfer.backends.probe_process import probe_in_processes
from isoinfer.backends.probe_result import ProbeResult, probe_plugin
from isoinfer.backends.registry_choice import AUTO, assume_device, choose_best, choose_device, find_source, parse_spec
from isoinfer.backends.registry_records import DeviceRow, PluginRecord, Selection, device_rows
from isoinfer.errors import BackendError

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend

T = TypeVar("T")


class Registry:
    """The installed backend plugins. Imports one when it has to, probes each at most once."""

    def __init__(
        self, sources: Sequence[PluginSource], *, cache: ProbeCache, time_limit: float = 10.0, refresh: bool = False
    ) -> None:
        self._sources = tuple(sources)
        self._cache = cache
        self._time_limit = time_limit
        self._refresh = refresh
        self._plugins: dict[PluginSource, Plugin] = {}
        self._records: tuple[PluginRecord, ...] | None = None

    @classmethod
    def load(cls, *, cache_dir: Path | None = None, time_limit: float = 10.0, refresh: bool = False) -> Registry:
        """The plugins of this interpreter. Reads entry points only; nothing is imported yet.

        `time_limit`: seconds for a plugin of another package to load and probe. `refresh`: ignore what
        earlier runs found out. `cache_dir`: where that is kept (default: the user's cache folder).
        """
        cache = ProbeCache(cache_dir or default_cache_dir())
        return cls(find_sources(), cache=cache, time_limit=time_limit, refresh=refresh)

    def records(self) -> list[PluginRecord]:
        """Every plugin with its descriptor and devices, or its error. By name."""
        if self._records is None:
            self._records = tuple(self._look_at_all())
        return list(self._records)

    def devices(self) -> list[DeviceRow]:
        """Every device of every plugin, for a table. A broken plugin has one row."""
        return [row for record in self.records() for row in device_rows(record)]

    def select(self, spec: str) -> Selection:
        """Choose by `NAME[:DEVICE]` or `auto`. DEVICE is a device's id, or n for the nth available one.

        Raises BackendError: unknown or ambiguous name, broken plugin, unavailable device, equal best scores.
        """
        name, device = parse_spec(spec)
        if name == AUTO:
            return choose_best(self.records())
        source = find_source(name, self._sources)
        return choose_device(PluginRecord(source=source, result=self._probe_here(source)), device)

    def assume(self, spec: str) -> Selection:
        """The plugin called `spec`, asked for a chip that need not be here: any of its devices will do.

        Raises BackendError: no single name, unknown or ambiguous name, broken plugin.
        """
        name, device = parse_spec(spec)
        if name == AUTO or device is not None:
            names = ", ".join(sorted({source.name for source in self._sources}))
            raise BackendError(f"name one backend to assume a chip of, without a device, not {spec!r}: {names}")
        source = find_source(name, self._sources)
        return assume_device(PluginRecord(source=source, result=self._probe_here(source)))

    def create(self, selection: Selection, config: BackendConfig) -> Backend:
        """Make the backend. Raises BackendError with the plugin's name; the plugin's own error is chained."""
        return self._ask(selection, "cannot be created", lambda plugin: plugin.create(selection.device, config))

    def claims(self, selection: Selection) -> Claims:
        """The conformance profiles the plugin claims on the chosen device. Raises BackendError as `create`."""
        return self._ask(selection, "cannot state its claims", lambda plugin: plugin.claims(selection.device))

    def _look_at_all(self) -> list[PluginRecord]:
        found: dict[PluginSource, PluginRecord] = {}
        for source in self._sources:
            if source.in_tree:
                found[source] = PluginRecord(source=source, result=self._probe_here(source))
            elif not self._refresh and (result := self._cache.get(source)) is not None:
                found[source] = PluginRecord(source=source, result=result, cached=True)
        rest = [source for source in self._sources if source not in found]
        for source, result in zip(rest, probe_in_processes(rest, self._time_limit), strict=True):
            self._cache.put(source, result)
            found[source] = PluginRecord(source=source, result=result)
        return [found[source] for source in self._sources]

    def _probe_here(self, source: PluginSource) -> ProbeResult:
        return probe_plugin(source, self._plugin)

    def _plugin(self, source: PluginSource) -> Plugin:
        if source not in self._plugins:
            self._plugins[source] = Plugin(source)
        return self._plugins[source]

    def _ask(self, selection: Selection, failure: str, question: Callable[[Plugin], T]) -> T:
        try:
            plugin = self._plugin(selection.source)
            plugin.require_api()
            return question(plugin)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # as in probe_plugin: plugins raise more than Exception
            who = f"backend {selection.spec!r} ({selection.source.label})"
            raise BackendError(f"{who} {failure}: {error_text(error)}") from error


def create_backend(spec: str, config: BackendConfig) -> Backend:
    """The backend for `NAME[:DEVICE]` or `auto`, ready to use, or to be asked if it assumes. Raises BackendError."""
    registry = Registry.load()
    selection = registry.select(spec) if config.assume is None else registry.assume(spec)
    return registry.create(selection, config)

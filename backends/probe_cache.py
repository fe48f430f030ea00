"""Probe results of third-party plugins on disk, so that `auto` does not start a process for each of them each time.

An entry holds for one installation of one plugin, seen from one environment of one host. It is a hint
with an age limit and never a source of errors: what cannot be read or written is as if it were not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from isoinfer.backends.descriptor import BACKEND_API
from isoinfer.backends.plugin_source import PluginSource
from isoinfer.backends.probe_result import ProbeResult, from_json, to_json
from isoinfer.version import __version__

GOOD_SECONDS = 24 * 3600.0
BAD_SECONDS = 600.0
"""A plugin that could not be used is looked at again soon: drivers get installed, devices become free."""


class ProbeCache:
    """Results under `cache_dir`/probes, one file each. None keeps nothing."""

    def __init__(self, cache_dir: Path | None) -> None:
        self._folder = None if cache_dir is None else cache_dir / "probes"

    def get(self, source: PluginSource) -> ProbeResult | None:
        """The stored result if it is for exactly this installation and fresh, else None."""
        path = self._path(source)
        if path is None:
            return None
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            entry = json.loads(path.read_text(encoding="utf-8"))
            result = from_json(entry["result"], source)
            age = time.time() - float(entry["time"])
            if entry["key"] == _key(source) and 0 <= age <= _life(result):
                return result
        return None

    def put(self, source: PluginSource, result: ProbeResult) -> None:
        """Store the result. Readers see the old file or the new one, never half of it."""
        path = self._path(source)
        if path is None:
            return
        entry = {"key": _key(source), "time": time.time(), "result": to_json(result)}
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_old(path.parent)
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".tmp", delete=False) as f:
                json.dump(entry, f)
            os.replace(f.name, path)

    def _path(self, source: PluginSource) -> Path | None:
        # An editable plugin changes without a new version: whoever writes one wants every edit seen.
        if self._folder is None or source.editable:
            return None
        digest = hashlib.sha256(json.dumps(_key(source), sort_keys=True).encode()).hexdigest()
        return self._folder / f"{digest[:32]}.json"


def default_cache_dir() -> Path | None:
    """isoinfer's folder where this platform keeps caches of the user, or None if there is no such place."""
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "win32":
        return home / "AppData" / "Local" / "isoinfer" / "Cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "isoinfer"
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = chosen if chosen.is_absolute() else home / ".cache"  # the convention says to ignore a relative one
    return base / "isoinfer"


def _key(source: PluginSource) -> dict[str, Any]:
    return {
        "plugin": [source.name, source.value, source.distribution, source.version],
        "installed": [source.location, source.installed_ns],
        "isoinfer": [__version__, *BACKEND_API],
        "python": [sys.version, sys.prefix],
        # Home folders are shared by the machines of a cluster, and vendors hide devices by such variables.
        "host": platform.node(),
        "visible": {name: value for name, value in sorted(os.environ.items()) if name.endswith("_VISIBLE_DEVICES")},
    }


def _life(result: ProbeResult) -> float:
    return GOOD_SECONDS if any(device.available for device in result.devices) else BAD_SECONDS


def _remove_old(folder: Path) -> None:
    oldest = time.time() - GOOD_SECONDS
    for path in (*folder.glob("*.json"), *folder.glob("*.tmp")):
        with suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()

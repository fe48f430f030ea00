"""Where backend plugins come from: installed entry points of the group `isoinfer.backends`, not yet imported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions

from isoinfer.backends.answer_check import normal_name
from isoinfer.backends.hookspecs import GROUP, PROJECT


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSource:
    """One entry point. `value` is `module` or `module:attribute`; `problem` says why it cannot even be read.

    `location` and `installed_ns` (mtime, None if unknown) tell two installations of one version apart.
    """

    name: str
    value: str
    distribution: str
    version: str
    location: str = ""
    installed_ns: int | None = None
    editable: bool = False
    problem: str | None = None

    @property
    def in_tree(self) -> bool:
        """Whether isoinfer itself ships this plugin."""
        return normal_name(self.distribution) == PROJECT

    @property
    def label(self) -> str:
        """How messages call it: the distribution and its version."""
        return f"{self.distribution} {self.version}"

    def load(self) -> object:
        """Import the module. Raises whatever the module raises, and TypeError for a value that is no module name."""
        point = EntryPoint(name=self.name, value=self.value, group=GROUP)
        if self.problem is not None or point.pattern.match(self.value) is None:
            raise TypeError(self.problem or f"entry point value {self.value!r} is not MODULE or MODULE:ATTRIBUTE")
        plugin: object = point.load()
        return plugin


def find_sources() -> list[PluginSource]:
    """Every plugin installed where this interpreter looks, by name. Imports none of them."""
    # Not importlib.metadata.entry_points(): one unreadable file there fails the call for everybody.
    first: dict[str, list[PluginSource]] = {}
    for distribution in distributions():
        text = _entry_points_text(distribution)
        if GROUP in text:
            name = distribution.metadata["Name"] or "unknown"
            first.setdefault(normal_name(name), list(_sources(distribution, name)))
    return sorted((s for group in first.values() for s in group), key=lambda s: (s.name, normal_name(s.distribution)))


def _entry_points_text(distribution: Distribution) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return distribution.read_text("entry_points.txt") or ""
    return ""


def _sources(distribution: Distribution, name: str) -> Iterator[PluginSource]:
    try:
        points = [(point.name, point.value) for point in distribution.entry_points if point.group == GROUP]
        problem = None
    except Exception as error:
        points = [(name, "")]
        problem = f"its entry_points.txt cannot be read: {error}"
    for point_name, value in points:
        yield PluginSource(
            name=point_name,
            value=value,
            distribution=name,
            version=distribution.metadata["Version"] or "unknown",
            location=str(distribution.locate_file("")),
            installed_ns=_installed_ns(distribution),
            editable=_is_editable(distribution),
            problem=problem,
        )


def _installed_ns(distribution: Distribution) -> int | None:
    for file in distribution.files or ():
        if file.name == "entry_points.txt":
            with suppress(OSError):
                return distribution.locate_file(file).stat().st_mtime_ns  # type: ignore[attr-defined,no-any-return]
    return None


def _is_editable(distribution: Distribution) -> bool:
    """As the installer recorded it (PEP 610)."""
    with suppress(OSError, ValueError, AttributeError):
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        return bool(origin.get("dir_info", {}).get("editable", False))
    return False

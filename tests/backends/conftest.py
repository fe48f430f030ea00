"""Real plugins for the seam's tests: modules and `*.dist-info` folders in a temporary folder on `sys.path`."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

GOOD = """
from isoinfer.backends.descriptor import BackendDescriptor, Claims, DeviceInfo
from isoinfer.backends.hookspecs import hookimpl

@hookimpl
def isoinfer_backend_descriptor():
    return BackendDescriptor(name={name!r}, vendor="tests", api={api!r}, distribution={distribution!r}, summary="sum")

@hookimpl
def isoinfer_backend_probe():
    return {devices}

@hookimpl
def isoinfer_backend_create(device, config):
    raise RuntimeError("create was called")

@hookimpl
def isoinfer_backend_claims(device):
    return Claims(profiles=("smoke",))
"""


class PluginFolder:
    """A folder like site-packages. Module names are unique, so tests in one process do not meet in `sys.modules`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modules: list[str] = []

    def good(
        self,
        name: str,
        *,
        distribution: str | None = None,
        version: str = "1.0",
        api: tuple[int, int] = (0, 1),
        devices: str = "[DeviceInfo(id='0', description='a chip', score=1)]",
        top: str = "",
        end: str = "",
        metadata: dict[str, str] | None = None,
    ) -> str:
        """Install a plugin that works, with source `top` before and `end` after it. Returns the module's name."""
        distribution = distribution or f"isotest-{name}"
        body = GOOD.format(name=name, api=api, distribution=distribution, devices=devices)
        return self.install(name, top + body + end, distribution=distribution, version=version, metadata=metadata)

    def install(
        self,
        name: str,
        source: str,
        *,
        distribution: str | None = None,
        version: str = "1.0",
        attribute: str = "",
        metadata: dict[str, str] | None = None,
    ) -> str:
        """Install `source` as the module behind entry point `name`. `metadata`: more files of the dist-info."""
        module = f"isotest_{uuid.uuid4().hex}"
        self.modules.append(module)
        (self.path / f"{module}.py").write_text(source)
        value = f"{module}:{attribute}" if attribute else module
        self.dist_info(
            distribution or f"isotest-{name}",
            f"[isoinfer.backends]\n{name} = {value}\n",
            version=version,
            metadata=metadata,
        )
        return module

    def dist_info(
        self, distribution: str, entry_points: str, *, version: str = "1.0", metadata: dict[str, str] | None = None
    ) -> Path:
        """Write the metadata of a distribution, over an older one of any version."""
        stem = distribution.replace("-", "_")
        for old in self.path.glob(f"{stem}-*.dist-info"):
            for file in old.iterdir():
                file.unlink()
            old.rmdir()
        folder = self.path / f"{stem}-{version}.dist-info"
        folder.mkdir()
        files = {
            "METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n",
            "entry_points.txt": entry_points,
            "RECORD": f"{folder.name}/entry_points.txt,,\n",
        }
        for name, text in {**files, **(metadata or {})}.items():
            (folder / name).write_text(text)
        return folder


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginFolder]:
    """An empty plugin folder, first on `sys.path` for the length of a test."""
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.syspath_prepend(str(path))
    folder = PluginFolder(path)
    yield folder
    for module in folder.modules:
        sys.modules.pop(module, None)

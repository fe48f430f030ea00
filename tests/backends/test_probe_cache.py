from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isoinfer.backends import probe_cache
from isoinfer.backends.descriptor import BackendDescriptor, DeviceInfo
from isoinfer.backends.plugin_source import PluginSource
from isoinfer.backends.probe_cache import BAD_SECONDS, GOOD_SECONDS, ProbeCache, default_cache_dir
from isoinfer.backends.probe_result import ProbeResult

SOURCE = PluginSource(name="chip", value="m", distribution="d", version="1", location="/x", installed_ns=1)
DESCRIPTOR = BackendDescriptor(name="chip", vendor="v", api=(0, 1), distribution="d")
GOOD = ProbeResult(descriptor=DESCRIPTOR, devices=(DeviceInfo(id="0", description="d", score=1),))
BUSY = ProbeResult(descriptor=DESCRIPTOR, devices=(DeviceInfo(id="0", description="d", score=1, reason="busy"),))
BAD = ProbeResult(error="it crashed")


def _file(folder: Path) -> Path:
    (file,) = folder.rglob("*.json")
    return file


@pytest.mark.parametrize("result", [GOOD, BUSY, BAD])
def test_what_was_put_is_got(tmp_path: Path, result: ProbeResult) -> None:
    cache = ProbeCache(tmp_path / "new" / "folder")
    assert cache.get(SOURCE) is None
    cache.put(SOURCE, result)
    assert ProbeCache(tmp_path / "new" / "folder").get(SOURCE) == result
    assert list(tmp_path.rglob("*.tmp")) == []


@pytest.mark.parametrize(
    "changes", [{"version": "2"}, {"value": "n"}, {"location": "/y"}, {"installed_ns": 2}, {"distribution": "D"}]
)
def test_another_installation_is_another_entry(tmp_path: Path, changes: dict[str, Any]) -> None:
    cache = ProbeCache(tmp_path)
    cache.put(SOURCE, GOOD)
    assert cache.get(dataclasses.replace(SOURCE, **changes)) is None
    assert cache.get(SOURCE) == GOOD


def test_so_are_another_python_host_and_set_of_visible_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ProbeCache(tmp_path)
    cache.put(SOURCE, GOOD)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version", "4.0")
        assert cache.get(SOURCE) is None
    with monkeypatch.context() as patch:
        patch.setattr(platform, "node", lambda: "elsewhere")
        assert cache.get(SOURCE) is None
    with monkeypatch.context() as patch:
        patch.setattr(probe_cache, "BACKEND_API", (0, 999))
        assert cache.get(SOURCE) is None
    with monkeypatch.context() as patch:
        patch.setenv("CHIP_VISIBLE_DEVICES", "0")
        assert cache.get(SOURCE) is None
    assert cache.get(SOURCE) == GOOD


@pytest.mark.parametrize(("result", "life"), [(GOOD, GOOD_SECONDS), (BUSY, BAD_SECONDS), (BAD, BAD_SECONDS)])
def test_entries_age(tmp_path: Path, result: ProbeResult, life: float) -> None:
    cache = ProbeCache(tmp_path)
    cache.put(SOURCE, result)
    for age, expected in ((life - 60, result), (life + 60, None), (-60, None)):
        then = time.time() - age
        _edit(tmp_path, lambda entry, then=then: {**entry, "time": then})  # type: ignore[misc]
        assert cache.get(SOURCE) == expected


def _edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = _file(folder)
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: {},
        lambda entry: [],
        lambda entry: None,
        lambda entry: {**entry, "time": "soon"},
        lambda entry: {**entry, "key": {}},
        lambda entry: {**entry, "result": {}},
        lambda entry: {**entry, "result": entry["result"].replace('"id"', '"di"')},
        lambda entry: {**entry, "result": entry["result"].replace('"score": 1', '"score": "1"')},
        lambda entry: {**entry, "result": entry["result"].replace('"chip"', '"chop"')},
    ],
)
def test_a_damaged_entry_is_a_miss_and_is_replaced(tmp_path: Path, change: Callable[[Any], object]) -> None:
    cache = ProbeCache(tmp_path)
    cache.put(SOURCE, GOOD)
    _edit(tmp_path, change)
    assert cache.get(SOURCE) is None
    cache.put(SOURCE, GOOD)
    assert cache.get(SOURCE) == GOOD


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b'{"time": NaN}'])
def test_bytes_that_are_no_entry_are_a_miss(tmp_path: Path, data: bytes) -> None:
    cache = ProbeCache(tmp_path)
    cache.put(SOURCE, GOOD)
    _file(tmp_path).write_bytes(data)
    assert cache.get(SOURCE) is None


def test_an_editable_install_and_no_folder_keep_nothing(tmp_path: Path) -> None:
    editable = dataclasses.replace(SOURCE, editable=True)
    cache = ProbeCache(tmp_path)
    cache.put(editable, GOOD)
    assert cache.get(editable) is None
    assert list(tmp_path.iterdir()) == []
    nowhere = ProbeCache(None)
    nowhere.put(SOURCE, GOOD)
    assert nowhere.get(SOURCE) is None


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ProbeCache(tmp_path / "file")
    cache.put(SOURCE, GOOD)
    assert cache.get(SOURCE) is None


def test_putting_removes_what_is_too_old_to_be_used(tmp_path: Path) -> None:
    cache = ProbeCache(tmp_path)
    cache.put(dataclasses.replace(SOURCE, version="0"), GOOD)
    old = _file(tmp_path)
    os.utime(old, (1.0, 1.0))
    foreign = old.with_name("notes.txt")
    foreign.write_text("not ours")
    os.utime(foreign, (1.0, 1.0))
    cache.put(SOURCE, GOOD)
    assert not old.exists()
    assert foreign.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the XDG convention")
def test_the_default_place_follows_the_convention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir() == tmp_path / "xdg" / "isoinfer"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache_dir() == tmp_path / ".cache" / "isoinfer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == tmp_path / ".cache" / "isoinfer"

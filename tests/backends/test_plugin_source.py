from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from isoinfer.backends.plugin_source import PluginSource, find_sources


def _found(*names: str) -> list[PluginSource]:
    return [source for source in find_sources() if source.name in names]


def test_the_cpu_backend_uses_the_same_door() -> None:
    (cpu,) = _found("cpu")
    assert cpu.in_tree
    assert cpu.value == "isoinfer.backends.cpu.plugin"


def test_an_installed_plugin_is_found_and_not_imported(plugins: Any) -> None:
    module = plugins.install("chip", "raise SystemExit(3)", distribution="isotest-chip", version="2.5")
    (source,) = _found("chip")
    assert (source.value, source.distribution, source.version) == (module, "isotest-chip", "2.5")
    assert source.label == "isotest-chip 2.5"
    assert not source.in_tree
    assert not source.editable
    assert source.installed_ns == next(plugins.path.glob("*.dist-info/entry_points.txt")).stat().st_mtime_ns
    assert module not in sys.modules


def test_sources_come_by_name(plugins: Any) -> None:
    for name in ("zchip", "achip", "cpx"):
        plugins.good(name)
    names = [source.name for source in find_sources()]
    assert names == sorted(names)
    assert {"achip", "cpu", "cpx", "zchip"} <= set(names)


def test_one_distribution_may_bring_two_and_another_may_reuse_a_name(plugins: Any) -> None:
    plugins.dist_info("isotest-two", "[isoinfer.backends]\na1 = m.a\na2 = m.b:hooks\n\n[console_scripts]\na3 = m:f\n")
    plugins.dist_info("isotest-one", "[isoinfer.backends]\na1 = n\n")
    found = [(source.name, source.distribution, source.value) for source in _found("a1", "a2", "a3")]
    assert found == [("a1", "isotest-one", "n"), ("a1", "isotest-two", "m.a"), ("a2", "isotest-two", "m.b:hooks")]


def test_the_first_on_the_path_wins(plugins: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins.dist_info("isotest-a", "[isoinfer.backends]\na = old\n", version="1.0")
    first = type(plugins)(tmp_path / "first")
    first.path.mkdir()
    first.dist_info("isotest-a", "[isoinfer.backends]\na = new\n", version="2.0")
    monkeypatch.syspath_prepend(str(first.path))
    (source,) = _found("a")
    assert (source.value, source.version, source.location) == ("new", "2.0", str(first.path))


def test_unreadable_metadata_disturbs_nobody(plugins: Any) -> None:
    plugins.dist_info("isotest-binary", "").joinpath("entry_points.txt").write_bytes(b"\xff\xfe[isoinfer.backends]")
    plugins.dist_info("isotest-broken", "[isoinfer.backends]\nno equals sign\n")
    plugins.dist_info("isotest-nometa", "[isoinfer.backends]\nnometa = m\n").joinpath("METADATA").unlink()
    plugins.good("chip")
    (broken,) = _found("isotest-broken")
    assert broken.problem is not None
    assert broken.problem.startswith("its entry_points.txt cannot be read")
    with pytest.raises(TypeError, match=r"entry_points\.txt cannot be read"):
        broken.load()
    assert [source.version for source in _found("nometa", "chip", "cpu")][1:] == [
        _found("cpu")[0].version,
        "unknown",
    ]


def test_an_editable_install_is_known(plugins: Any) -> None:
    plugins.good("chip", metadata={"direct_url.json": json.dumps({"url": "file:///x", "dir_info": {"editable": True}})})
    plugins.good("chop", metadata={"direct_url.json": json.dumps({"url": "file:///x", "dir_info": {}})})
    plugins.good("chup", metadata={"direct_url.json": "{"})
    assert [source.editable for source in _found("chip", "chop", "chup")] == [True, False, False]


def test_a_value_may_name_an_attribute(plugins: Any) -> None:
    plugins.install("chip", "class hooks:\n    word = 'here'\n", attribute="hooks")
    assert _found("chip")[0].load().word == "here"  # type: ignore[attr-defined]


def test_a_value_that_is_no_module_is_said_to_be_none(plugins: Any) -> None:
    plugins.dist_info("isotest-chip", "[isoinfer.backends]\nchip = not a module!\n")
    with pytest.raises(TypeError, match="entry point value 'not a module!' is not MODULE or MODULE:ATTRIBUTE"):
        _found("chip")[0].load()

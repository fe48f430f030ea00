"""The registry over real entry points. Names of test plugins stand for what is wrong with them."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from isoinfer.backends.descriptor import BackendConfig, DeviceInfo
from isoinfer.backends.registry import Registry, create_backend
from isoinfer.backends.registry_records import PluginRecord, Selection
from isoinfer.errors import BackendError

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "importerror": ({"top": "import no_such_vendor_module\n"}, "No module named 'no_such_vendor_module'"),
    "syntaxerror": ({"top": "def f(:\n"}, "SyntaxError: invalid syntax"),
    "systemexit": ({"top": "raise SystemExit('bye')\n"}, "SystemExit: bye"),
    "crash": ({"top": "import os; os._exit(9)\n"}, "it crashed when loaded or probed: exit status 9"),
    "unknownhook": (
        {"end": "\ndef isoinfer_backend_claim(device): ...\n"},
        "unknown hook isoinfer_backend_claim: did you mean isoinfer_backend_claims?",
    ),
    "signature": (
        {"end": "\n@hookimpl\ndef isoinfer_backend_create(device): ...\n"},
        "yours is (device), the hook is (device: DeviceInfo, config: BackendConfig) -> Backend",
    ),
    "missing": ({"end": "\ndel isoinfer_backend_claims\n"}, "TypeError: hook isoinfer_backend_claims is missing"),
    "descriptor": (
        {"end": "\n@hookimpl\ndef isoinfer_backend_descriptor(): return {}\n"},
        "isoinfer_backend_descriptor returned dict instead of BackendDescriptor",
    ),
    "major": ({"api": (99, 0)}, "written for backend api 99.0"),
    "minor": ({"api": (0, 99)}, "written for backend api 0.99"),
    "probe": ({"devices": "1 / 0"}, "its probe failed: ZeroDivisionError: division by zero"),
}


def _load(tmp_path: Path, **options: Any) -> Registry:
    return Registry.load(cache_dir=tmp_path / "cache", **options)


def _by_name(registry: Registry) -> dict[str, PluginRecord]:
    return {record.name: record for record in registry.records()}


def test_every_kind_of_broken_plugin_is_a_record_and_disturbs_nobody(plugins: Any, tmp_path: Path) -> None:
    for name, (options, _) in BROKEN.items():
        plugins.good(name, **options)
    plugins.good("fine", api=(0, 0))
    plugins.dist_info("isotest-garbled", "[isoinfer.backends]\nno equals sign\n")
    registry = _load(tmp_path, time_limit=60.0)
    records = _by_name(registry)
    errors = {name: records[name].error or "" for name in BROKEN}
    assert {name for name, (_, text) in BROKEN.items() if text not in errors[name]} == set(), errors
    assert records["isotest-garbled"].error is not None
    for works in ("fine", "cpu"):
        assert records[works].error is None
        assert records[works].devices[0].available
    assert records["probe"].descriptor is not None
    assert not set(plugins.modules) & set(sys.modules)  # none was imported here
    rows = {row.backend: row for row in registry.devices()}
    assert (rows["fine"].status, rows["fine"].api, rows["fine"].score) == ("available", "0.0", 1)
    assert (rows["crash"].status, rows["crash"].device) == ("broken", None)


@pytest.mark.parametrize("name", [name for name in BROKEN if name != "crash"])
def test_naming_a_broken_plugin_says_what_is_wrong(name: str, plugins: Any, tmp_path: Path) -> None:
    options, text = BROKEN[name]
    plugins.good(name, **options)
    with pytest.raises(BackendError) as caught:
        _load(tmp_path).select(name)
    assert str(caught.value).startswith(f"backend {name!r} (isotest-{name} 1.0) cannot be used: ")
    assert text in str(caught.value)


def test_a_hanging_plugin_costs_the_limit_and_no_more(plugins: Any, tmp_path: Path) -> None:
    hang = "__import__('time').sleep(1000)"
    plugins.good("hangs", devices=hang)
    plugins.good("hangstoo", top=hang + "\n")
    plugins.good("hangsalso", devices=hang)
    plugins.good("fine")
    started = time.monotonic()
    records = _by_name(_load(tmp_path, time_limit=4.0))
    assert time.monotonic() - started < 10  # side by side, not one after the other
    for name in ("hangs", "hangstoo", "hangsalso"):
        assert records[name].error == "it did not answer within 4 s (loaded and probed on its own)"
    assert records["fine"].error is None
    assert records["cpu"].error is None


def test_naming_one_touches_no_other(plugins: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    note = f"with open({str(trace)!r}, 'a') as file: file.write(__name__ + ' ')\n"
    other = plugins.good("other", top=note)
    chosen = plugins.good("chosen", top=note)
    selection = _load(tmp_path).select("chosen")
    assert selection.spec == "chosen:0"
    assert trace.read_text().split() == [chosen]
    assert chosen in sys.modules
    assert other not in sys.modules


def test_auto_takes_the_highest_score_of_all(plugins: Any, tmp_path: Path) -> None:
    score = "[DeviceInfo(id='0', description='chip', score={})]"
    plugins.good("mid", devices=score.format(500))
    assert _load(tmp_path).select("auto").spec == "mid:0"
    plugins.good("top", devices=score.format(900))
    assert _load(tmp_path).select("auto").spec == "top:0"
    plugins.good("tie", devices=score.format(900))
    with pytest.raises(BackendError, match=r"tie:0 \(isotest-tie 1\.0\) and top:0 \(isotest-top 1\.0\) have the same"):
        _load(tmp_path).select("auto")
    assert _load(tmp_path).select("mid").spec == "mid:0"


def test_one_name_from_two_distributions(plugins: Any, tmp_path: Path) -> None:
    plugins.good("chip", distribution="isotest-one", devices="[DeviceInfo(id='1', description='', score=1)]")
    plugins.good("chip", distribution="isotest-two", version="2.0")
    registry = _load(tmp_path)
    both = [(r.distribution, r.version, r.devices[0].id) for r in registry.records() if r.name == "chip"]
    assert both == [("isotest-one", "1.0", "1"), ("isotest-two", "2.0", "0")]
    with pytest.raises(BackendError, match=r"provided by isotest-one 1\.0 and isotest-two 2\.0"):
        registry.select("chip")


def test_an_unknown_name(plugins: Any, tmp_path: Path) -> None:
    plugins.good("chip")
    with pytest.raises(BackendError, match=r"there is no backend 'chp': did you mean 'chip'.*chip, cpu"):
        _load(tmp_path).select("chp")


def test_looks_are_cached_by_version_and_refreshed_on_request(plugins: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    top = f"with open({str(trace)!r}, 'a') as file: file.write('x')\n"

    def looks(**options: Any) -> tuple[int, bool]:
        record = _by_name(_load(tmp_path, **options))["chip"]
        assert record.error is None
        return len(trace.read_text()), record.cached

    plugins.good("chip", top=top)
    assert looks() == (1, False)
    assert looks() == (1, True)
    assert looks(refresh=True) == (2, False)
    assert looks() == (2, True)
    plugins.good("chip", top=top, version="1.1")
    assert looks() == (3, False)
    for file in (tmp_path / "cache").rglob("*.json"):
        file.write_text("{")
    assert looks() == (4, False)


def test_a_registry_looks_at_each_once(plugins: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    plugins.good("chip", top=f"with open({str(trace)!r}, 'a') as file: file.write('x')\n")
    registry = _load(tmp_path, refresh=True)
    registry.records().clear()  # a copy: what a caller does to it stays with the caller
    assert {row.backend for row in registry.devices()} >= {"chip", "cpu"}
    assert registry.select("auto").device.available
    assert trace.read_text() == "x"


def test_a_failure_is_cached_too(plugins: Any, tmp_path: Path) -> None:
    plugins.good("chip", top="import os; os._exit(9)\n")
    assert not _by_name(_load(tmp_path))["chip"].cached
    again = _by_name(_load(tmp_path))["chip"]
    assert again.cached
    assert again.error is not None
    assert "exit status 9" in again.error


def test_create_failures_carry_the_plugin_and_the_cause(plugins: Any, tmp_path: Path) -> None:
    plugins.good("chip")
    registry = _load(tmp_path)
    selection = registry.select("chip:0")
    expected = r"^backend 'chip:0' \(isotest-chip 1\.0\) cannot be created: RuntimeError: create was called$"
    with pytest.raises(BackendError, match=expected) as caught:
        registry.create(selection, BackendConfig())
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert registry.claims(selection).profiles == ("smoke",)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return object()", "returned object, which lacks allocate_kv, bind"),
        ("return None", "returned NoneType, which lacks allocate_kv, bind"),
        ("raise SystemExit(4)", "SystemExit: 4"),
        ("from isoinfer.errors import BackendError; raise BackendError('no option x')", "created: no option x"),
    ],
)
def test_a_wrong_backend_is_refused(body: str, text: str, plugins: Any, tmp_path: Path) -> None:
    plugins.good("chip", end=f"\n@hookimpl\ndef isoinfer_backend_create(device, config):\n    {body}\n")
    registry = _load(tmp_path)
    with pytest.raises(BackendError, match="cannot be created") as caught:
        registry.create(registry.select("chip"), BackendConfig())
    assert text in str(caught.value)


def test_create_and_claims_hand_over_what_was_chosen(plugins: Any, tmp_path: Path) -> None:
    echo = """
@hookimpl
def isoinfer_backend_create(device, config):
    raise RuntimeError((device.id, config.dtype, config.options))

@hookimpl
def isoinfer_backend_claims(device):
    return Claims(profiles=(device.id,))
"""
    devices = "[DeviceInfo(id=i, description='', score=1) for i in ('a', 'b')]"
    plugins.good("chip", devices=devices, end=echo)
    registry = _load(tmp_path)
    selection = registry.select("chip:1")
    with pytest.raises(BackendError, match=r"\('b', 'bfloat16', \{'k': 'v'\}\)"):
        registry.create(selection, BackendConfig(dtype="bfloat16", options={"k": "v"}))
    assert registry.claims(selection).profiles == ("b",)


def test_a_choice_from_elsewhere_is_checked_again(plugins: Any, tmp_path: Path) -> None:
    plugins.good("chip", api=(0, 99))
    registry = _load(tmp_path)
    source = next(record.source for record in registry.records() if record.name == "chip")
    selection = Selection(source=source, device=DeviceInfo(id="0", description="", score=1))
    with pytest.raises(BackendError, match=r"cannot be created: it was written for backend api 0\.99"):
        registry.create(selection, BackendConfig())


def test_a_failing_claim_is_a_backend_error(plugins: Any, tmp_path: Path) -> None:
    plugins.good("chip", end="\n@hookimpl\ndef isoinfer_backend_claims(device): return ['smoke']\n")
    registry = _load(tmp_path)
    with pytest.raises(BackendError, match=r"'chip:0' .* cannot state its claims: TypeError: .*list instead of Claims"):
        registry.claims(registry.select("chip"))


def test_create_backend_is_the_whole_way(plugins: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plugins.good("chip")
    with pytest.raises(BackendError, match=r"backend 'chip:0' .*create was called"):
        create_backend("chip", BackendConfig())
    with pytest.raises(BackendError, match="there is no backend 'chop'"):
        create_backend("chop", BackendConfig())


def test_a_chip_that_is_not_here_can_be_assumed(plugins: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tell = """
@hookimpl
def isoinfer_backend_create(device, config):
    raise RuntimeError((device.id, config.assume))
"""
    plugins.good("chip", devices="[DeviceInfo(id='0', description='', score=0, reason='no driver')]", end=tell)
    plugins.good("bad", top="raise ImportError('no such library')\n")
    with pytest.raises(BackendError, match="'chip' has no available device: 0: no driver"):
        create_backend("chip", BackendConfig())
    with pytest.raises(BackendError, match=r"\('0', 'c9'\)"):
        create_backend("chip", BackendConfig(assume="c9"))
    for spec in ("auto", "chip:0"):
        with pytest.raises(BackendError, match=f"name one backend to assume a chip of, without a device, not '{spec}'"):
            create_backend(spec, BackendConfig(assume="c9"))
    with pytest.raises(BackendError, match=r"'bad' .* cannot be used: .*no such library"):
        create_backend("bad", BackendConfig(assume="c9"))
    with pytest.raises(BackendError, match="there is no backend 'chop'"):
        create_backend("chop", BackendConfig(assume="c9"))

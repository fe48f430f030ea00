from __future__ import annotations

import re

import pytest

from isoinfer.backends.descriptor import BackendDescriptor, DeviceInfo
from isoinfer.backends.plugin_source import PluginSource
from isoinfer.backends.probe_result import ProbeResult
from isoinfer.backends.registry_choice import choose_best, choose_device, find_source, parse_spec
from isoinfer.backends.registry_records import PluginRecord
from isoinfer.errors import BackendError


def _source(name: str, distribution: str = "") -> PluginSource:
    return PluginSource(name=name, value="m", distribution=distribution or f"{name}-dist", version="1.0")


def _device(id: str, score: int = 1, reason: str | None = None) -> DeviceInfo:
    return DeviceInfo(id=id, description="d", score=score, reason=reason)


def _record(name: str, *devices: DeviceInfo, error: str | None = None, distribution: str = "") -> PluginRecord:
    source = _source(name, distribution)
    descriptor = BackendDescriptor(name=name, vendor="v", api=(0, 1), distribution=source.distribution)
    return PluginRecord(source=source, result=ProbeResult(descriptor=descriptor, devices=devices, error=error))


def test_specs() -> None:
    assert parse_spec("auto") == ("auto", None)
    assert parse_spec(" cpu ") == ("cpu", None)
    assert parse_spec("chip:1") == ("chip", "1")
    assert parse_spec("chip:pci:0:1") == ("chip", "pci:0:1")


@pytest.mark.parametrize("spec", ["", " ", ":", ":0", "cpu:", "auto:0"])
def test_bad_specs(spec: str) -> None:
    with pytest.raises(BackendError, match=re.escape(f"backend {spec!r} is not NAME, NAME:DEVICE or auto")):
        parse_spec(spec)


def test_an_unknown_name_gives_the_nearest_and_all() -> None:
    sources = [_source("cuda"), _source("cpu"), _source("sim")]
    assert find_source("cpu", sources).name == "cpu"
    with pytest.raises(BackendError, match=r"^there is no backend 'CDUA': did you mean 'cuda'. the backends are cpu, "):
        find_source("CDUA", sources)
    with pytest.raises(BackendError, match=r"^there is no backend 'zzz': the backends are cpu, cuda, sim, or auto$"):
        find_source("zzz", sources)
    with pytest.raises(BackendError, match="nor any other: is isoinfer installed"):
        find_source("cpu", [])


def test_a_name_given_twice_names_both_distributions() -> None:
    with pytest.raises(BackendError, match=r"'chip' is provided by one 1\.0 and two 1\.0: uninstall all but one"):
        find_source("chip", [_source("chip", "one"), _source("chip", "two"), _source("cpu")])


def test_a_device_by_id_by_whole_id_by_index_and_by_default() -> None:
    record = _record("chip", _device("a", reason="busy"), _device("b", 5), _device("chip:7", 5), _device("d", 3))
    for asked, expected in (("b", "b"), ("7", "chip:7"), ("0", "b"), ("2", "d"), (None, "b"), ("chip:7", "chip:7")):
        selection = choose_device(record, asked)
        assert selection.device.id == expected
        assert selection.name == "chip"
    assert choose_device(record, "d").spec == "chip:d"


def test_an_id_is_never_taken_for_an_index() -> None:
    record = _record("chip", _device("0", reason="in use"), _device("1"))
    with pytest.raises(BackendError, match="device '0' of backend 'chip' is not available: in use"):
        choose_device(record, "0")
    assert choose_device(record, "1").device.id == "1"
    whole = _record("chip", _device("chip:0", reason="in use"), _device("chip:1"))
    with pytest.raises(BackendError, match="device 'chip:0' of backend 'chip' is not available: in use"):
        choose_device(whole, "0")


@pytest.mark.parametrize("device", ["2", "-1", "x", "1.0", "²"])
def test_a_device_that_is_not_there_lists_those_that_are(device: str) -> None:
    record = _record("chip", _device("a", reason="busy"), _device("b"), _device("c"))
    message = f"backend 'chip' has no device {device!r}: its devices are a, b, c (2 available)"
    with pytest.raises(BackendError, match=re.escape(message)):
        choose_device(record, device)


def test_what_cannot_be_used_says_why() -> None:
    with pytest.raises(BackendError, match="'chip' has no available device: a: busy; b: no driver"):
        choose_device(_record("chip", _device("a", reason="busy"), _device("b", reason="no driver")), None)
    with pytest.raises(BackendError, match=r"'chip' \(chip-dist 1\.0\) cannot be used: it crashed"):
        choose_device(_record("chip", error="it crashed"), None)


def test_auto_takes_the_highest_available_score() -> None:
    records = [
        _record("cpu", _device("0", 10)),
        _record("gone", _device("0", 1000, reason="no driver")),
        _record("broken", error="it crashed"),
        _record("chip", _device("0", 100), _device("1", 300), _device("2", 300)),
    ]
    assert choose_best(records).spec == "chip:1"
    assert choose_best(records[:3]).spec == "cpu:0"


def test_equal_best_scores_are_an_error_that_names_both() -> None:
    records = [_record("cpu", _device("0", 10)), _record("x", _device("0", 50)), _record("y", _device("a", 50))]
    message = "x:0 (x-dist 1.0) and y:a (y-dist 1.0) have the same score 50: choose one with --backend NAME[:DEVICE]"
    with pytest.raises(BackendError, match=f"^{re.escape(message)}$"):
        choose_best(records)
    assert choose_best([*records, _record("z", _device("0", 60))]).name == "z"


def test_auto_without_any_device_gives_every_reason() -> None:
    records = [_record("chip", _device("0", reason="no driver")), _record("broken", error="it crashed")]
    with pytest.raises(BackendError, match="no backend has an available device: chip:0: no driver; broken: it crashed"):
        choose_best(records)
    with pytest.raises(BackendError, match="no backend has an available device: none found"):
        choose_best([])

from __future__ import annotations

from isoinfer.backends.descriptor import BackendDescriptor, DeviceInfo
from isoinfer.backends.plugin_source import PluginSource
from isoinfer.backends.probe_result import ProbeResult
from isoinfer.backends.registry_records import PluginRecord, device_rows

SOURCE = PluginSource(name="chip", value="m", distribution="d", version="1.0")
DESCRIPTOR = BackendDescriptor(name="chip", vendor="v", api=(0, 7), distribution="d", summary="a summary")


def test_a_row_for_each_device() -> None:
    devices = (
        DeviceInfo(id="a", description="big", score=5),
        DeviceInfo(id="b", description="small", score=3, reason="busy"),
    )
    record = PluginRecord(source=SOURCE, result=ProbeResult(descriptor=DESCRIPTOR, devices=devices), cached=True)
    first, second = device_rows(record)
    assert (first.backend, first.distribution, first.version, first.api) == ("chip", "d", "1.0", "0.7")
    assert (first.device, first.description, first.score) == ("a", "big", 5)
    assert (first.status, first.reason, first.cached) == ("available", None, True)
    assert (second.device, second.status, second.reason) == ("b", "unavailable", "busy")


def test_one_row_for_a_broken_plugin_with_what_is_known() -> None:
    (known,) = device_rows(PluginRecord(source=SOURCE, result=ProbeResult(descriptor=DESCRIPTOR, error="crash")))
    assert (known.api, known.description, known.device, known.score) == ("0.7", "a summary", None, None)
    assert (known.status, known.reason) == ("broken", "crash")
    (unknown,) = device_rows(PluginRecord(source=SOURCE, result=ProbeResult(error="crash")))
    assert (unknown.api, unknown.description, unknown.status) == ("", "", "broken")

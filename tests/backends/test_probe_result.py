from __future__ import annotations

import json
from typing import Any

import pytest

from isoinfer.backends.plugin import Plugin
from isoinfer.backends.plugin_source import PluginSource, find_sources
from isoinfer.backends.probe_result import ProbeResult, from_json, probe_plugin, to_json


def _probe(name: str) -> tuple[PluginSource, ProbeResult]:
    source = next(source for source in find_sources() if source.name == name)
    return source, probe_plugin(source)


def test_a_result_survives_json(plugins: Any) -> None:
    plugins.good("chip", devices="[DeviceInfo(id='0', description='é', score=-3, reason='busy')]")
    source, result = _probe("chip")
    assert result.error is None
    assert result.devices[0].reason == "busy"
    assert from_json(to_json(result), source) == result


@pytest.mark.parametrize(
    ("top", "error"),
    [
        ("import no_such_module_of_a_vendor", "ModuleNotFoundError: No module named 'no_such_module_of_a_vendor'"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("class Panic(BaseException): pass\nraise Panic('native')", r"\w+\.Panic: native"),
    ],
)
def test_what_stops_loading_is_the_error(plugins: Any, top: str, error: str) -> None:
    plugins.good("chip", top=top)
    source, result = _probe("chip")
    assert result.descriptor is None
    assert result.devices == ()
    assert result.error is not None
    assert result.error.startswith("it cannot be loaded: ")
    with pytest.raises(ValueError, match=error):
        raise ValueError(result.error)
    assert from_json(to_json(result), source) == result


def test_a_failing_probe_keeps_the_descriptor(plugins: Any) -> None:
    plugins.good("chip", devices="1 / 0")
    source, result = _probe("chip")
    assert result.descriptor is not None
    assert result.error == "its probe failed: ZeroDivisionError: division by zero"
    assert from_json(to_json(result), source) == result


def test_a_refused_api_is_not_probed(plugins: Any) -> None:
    plugins.good("chip", api=(0, 999), devices="1 / 0")
    _, result = _probe("chip")
    assert result.descriptor is not None
    assert result.error is not None
    assert result.error.startswith("it was written for backend api 0.999 and this isoinfer has 0.")


def test_only_the_user_can_interrupt(plugins: Any) -> None:
    def interrupted(source: PluginSource) -> Plugin:
        raise KeyboardInterrupt

    source = PluginSource(name="x", value="x", distribution="x", version="1")
    with pytest.raises(KeyboardInterrupt):
        probe_plugin(source, interrupted)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"descriptor": null, "devices": [], "error": null}',
        '{"descriptor": {}, "devices": [], "error": "x"}',
        '{"descriptor": 3, "devices": [], "error": null}',
    ],
)
def test_other_json_is_refused(text: str) -> None:
    source = PluginSource(name="chip", value="x", distribution="isotest-chip", version="1")
    with pytest.raises((ValueError, TypeError, KeyError)):
        from_json(text, source)


def test_a_result_of_another_plugin_is_refused(plugins: Any) -> None:
    plugins.good("chip")
    source, result = _probe("chip")
    data = json.loads(to_json(result))
    data["descriptor"]["name"] = "chop"
    with pytest.raises(TypeError, match="its name is 'chop'"):
        from_json(json.dumps(data), source)

from __future__ import annotations

from typing import Any

import pytest

from isoinfer.backends.descriptor import BACKEND_API, BackendConfig
from isoinfer.backends.plugin import Plugin, error_text
from isoinfer.backends.plugin_source import PluginSource, find_sources
from isoinfer.errors import BackendError


def _source(name: str) -> PluginSource:
    return next(source for source in find_sources() if source.name == name)


def test_a_plugin_answers_each_hook(plugins: Any) -> None:
    plugins.good("chip")
    plugin = Plugin(_source("chip"))
    assert plugin.descriptor.name == "chip"
    (device,) = plugin.probe()
    assert device.description == "a chip"
    assert plugin.claims(device).profiles == ("smoke",)
    with pytest.raises(RuntimeError, match="create was called"):
        plugin.create(device, BackendConfig())


def test_making_one_does_not_probe(plugins: Any) -> None:
    plugins.good("chip", devices="1 / 0")
    plugin = Plugin(_source("chip"))
    with pytest.raises(ZeroDivisionError):
        plugin.probe()


def test_two_plugins_do_not_hear_each_other(plugins: Any) -> None:
    plugins.good("chip")
    plugins.good("chop", devices="1 / 0")
    chip, _chop = Plugin(_source("chip")), Plugin(_source("chop"))
    assert len(chip.probe()) == 1


@pytest.mark.parametrize(("api", "works"), [((BACKEND_API[0], 0), True), ((BACKEND_API[0] + 1, 0), False)])
def test_the_handshake_is_asked_for_apart_from_loading(plugins: Any, api: tuple[int, int], works: bool) -> None:
    plugins.good("chip", api=api)
    plugin = Plugin(_source("chip"))
    assert plugin.descriptor.api == api
    if works:
        plugin.require_api()
    else:
        with pytest.raises(BackendError, match="another major version"):
            plugin.require_api()


def test_an_exception_becomes_one_line() -> None:
    assert error_text(BackendError("no such chip")) == "no such chip"
    assert error_text(KeyError("x\ny")) == "KeyError: 'x\\ny'"
    assert error_text(RuntimeError("two\n  lines")) == "RuntimeError: two lines"
    assert error_text(SystemExit(3)) == "SystemExit: 3"
    assert error_text(SyntaxError("bad", ("plugin.py", 7, 1, "x ="))) == "SyntaxError: bad (plugin.py, line 7)"

"""`backends` shows what there is, broken plugins with their error."""

from __future__ import annotations

import json

from isoinfer.backends.registry_records import DeviceRow

BROKEN = DeviceRow(
    backend="bad",
    distribution="bad-plugin",
    version="1",
    api="",
    device=None,
    description="",
    score=None,
    status="broken",
    reason="it cannot be loaded: TypeError: [red]no[/red]",
    cached=False,
)


def test_the_cpu_is_listed(isoinfer):
    ran = isoinfer("backends")
    assert (ran.code, ran.err) == (0, "")
    titles, *rows = ran.out.splitlines()
    assert titles.split()[:3] == ["name", "device", "description"]
    (cpu,) = (row for row in rows if row.startswith("cpu "))
    assert cpu.endswith("available")


def test_json_has_every_column(isoinfer):
    (cpu,) = (row for row in json.loads(isoinfer("backends", "--json").out) if row["backend"] == "cpu")
    assert {"device", "score", "api", "status", "reason"} <= set(cpu)
    assert (cpu["status"], cpu["reason"]) == ("available", None)


def test_a_broken_plugin_is_shown_with_its_error(isoinfer, monkeypatch):
    monkeypatch.setattr("isoinfer.backends.registry.Registry.devices", lambda self: [BROKEN])
    ran = isoinfer("backends")
    assert ran.code == 0
    assert "broken: it cannot be loaded: TypeError: [red]no[/red]" in ran.out


def test_refresh_is_passed_on(isoinfer, monkeypatch):
    from isoinfer.backends.registry import Registry

    given = []
    load = Registry.load
    monkeypatch.setattr(Registry, "load", lambda **options: given.append(options) or load(**options))
    isoinfer("backends", "--refresh")
    assert given == [{"refresh": True}]

"""Groups of options become options, and come back as groups."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated

import typer

from isoinfer.cli.option_groups import expand_groups


@dataclass(frozen=True, kw_only=True)
class Size:
    width: Annotated[int, typer.Option("--width")]
    height: Annotated[int, typer.Option("--height")] = 2


def command(size: Size, name: Annotated[str, typer.Option("--name")] = "x") -> int:
    """What it does."""
    return (size, name)  # type: ignore[return-value]


def test_fields_become_parameters_and_values_a_group():
    expanded = expand_groups(command)
    assert list(inspect.signature(expanded).parameters) == ["name", "width", "height"]
    assert expanded.__doc__ == "What it does."
    assert expanded(name="y", width=1, height=3) == (Size(width=1, height=3), "y")


def test_typer_sees_defaults_and_requirements():
    app = typer.Typer()
    app.command()(expand_groups(command))
    params = {p.name: p for p in typer.main.get_command(app).params}
    assert params["width"].required
    assert params["height"].default == 2

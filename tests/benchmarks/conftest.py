"""The programs under benchmarks/ import one another as scripts do: from their own folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a program by its name; all that came from its folder are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield import_module
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(FOLDER):
            del sys.modules[name]

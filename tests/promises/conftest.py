"""The project's files as the promises read them."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

FOLDERS = ("core", "backends", "conformance", "kernels_cuda", "kernels_ascend")


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return Path(__file__).parents[2]


@pytest.fixture(scope="session")
def sources(root: Path) -> dict[str, Path]:
    """Every module that is shipped, by its path relative to the root."""
    return {path.relative_to(root).as_posix(): path for folder in FOLDERS for path in (root / folder).rglob("*.py")}


@pytest.fixture(scope="session")
def trees(sources: dict[str, Path]) -> dict[str, ast.Module]:
    """Every module, parsed."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in sources.items()}


@pytest.fixture(scope="session")
def settings(root: Path) -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))

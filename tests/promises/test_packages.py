"""The package list in pyproject.toml is complete, and its folders cannot be imported under their own names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any


def test_every_folder_with_modules_is_listed(sources: dict[str, Path], settings: dict[str, Any]) -> None:
    names = {folder: package for package, folder in settings["tool"]["setuptools"]["package-dir"].items()}
    split = (Path(name).parent.parts for name in sources)
    found = {".".join((names[first], *rest)) for first, *rest in split}
    assert sorted(settings["tool"]["setuptools"]["packages"]) == sorted(found)


def test_folder_names_are_no_modules(settings: dict[str, Any], tmp_path: Path) -> None:
    folders = sorted(settings["tool"]["setuptools"]["package-dir"].values())
    code = f"from importlib.util import find_spec; print([name for name in {folders} if find_spec(name)])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"

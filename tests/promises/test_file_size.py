"""A file has one noun: 400 lines at most, and half of the files have 120 or fewer."""

from __future__ import annotations

from pathlib import Path
from statistics import median


def test_files_stay_small(root: Path, sources: dict[str, Path]) -> None:
    shipped = [path for path in sources.values() if path.stat().st_size]
    others = [p for folder in ("tests", "benchmarks", "examples") for p in (root / folder).rglob("*.py")]
    native = [path for path in (root / "backends").rglob("*") if path.suffix in (".cpp", ".h")]
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in (*shipped, *others, *native)}
    assert [(str(path.relative_to(root)), count) for path, count in lines.items() if count > 400] == []
    assert median(lines[path] for path in shipped) <= 120

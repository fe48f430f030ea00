"""Each module has a test file at the same place under tests/, or is on a list with the file that tests it instead."""

from __future__ import annotations

from pathlib import Path


def test_every_module_is_mirrored(root: Path, sources: dict[str, Path]) -> None:
    lines = (root / "tests/promises/tested_elsewhere.txt").read_text(encoding="utf-8").splitlines()
    elsewhere = dict(line.split() for line in lines)
    modules = {name for name, path in sources.items() if path.name != "__init__.py"}
    mirrored = {n for n in modules if (root / "tests" / Path(n).with_name(f"test_{Path(n).name}")).is_file()}
    assert sorted(modules - mirrored - set(elsewhere)) == [], "write a test file, or name the one that tests it"
    assert sorted(name for name, test in elsewhere.items() if not (root / test).is_file()) == []
    assert sorted(set(elsewhere) & mirrored | set(elsewhere) - modules) == [], "no longer needed in the list"

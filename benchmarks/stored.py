"""Where benchmarks keep their results: benchmarks/results/NAME.json and NAME.md, and the table in README."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def machine() -> dict[str, Any]:
    """What the numbers belong to."""
    return {"cpu": _cpu_name(), "cores": os.cpu_count(), "python": platform.python_version()}


def versions(*packages: str) -> dict[str, str]:
    """Of these installed packages."""
    return {package: version(package) for package in packages}


def load() -> float:
    """Processes that wanted a core in the last minute."""
    return round(os.getloadavg()[0], 2)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    first, *others = (f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows))
    return "\n".join([first, "|" + "---|" * len(head), *others])


def add_store_option(parser: argparse.ArgumentParser) -> None:
    """`--store`, the same everywhere."""
    parser.add_argument("--store", action="store_true", help="write benchmarks/results/ and the table in README")


def store(name: str, record: Mapping[str, Any], *, title: str, about: str, shown: str, notes: str = "") -> None:
    """Write `record` with date and machine as NAME.json, a page as NAME.md, and `shown` between README's marks.

    `about` says under the title what was measured, `shown` is the table, `notes` come below it.
    """
    where, date = machine(), time.strftime("%Y-%m-%d")
    results = ROOT / "benchmarks/results"
    results.mkdir(exist_ok=True)
    full = {"date": date, "machine": where, **record}
    (results / f"{name}.json").write_text(json.dumps(full, indent=1) + "\n", encoding="utf-8")
    about = f"{about} Machine: {where['cpu']}, {where['cores']} cores."
    parts = [f"# {title}, {date}", about, shown, *([notes] if notes else [])]
    (results / f"{name}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    put_in_readme(name, shown, ROOT / "README.md")


def put_in_readme(name: str, shown: str, readme: Path) -> None:
    """Replace what stands between the marks of `name`. A page without them stays as it is."""
    first, last = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, begin, rest = readme.read_text(encoding="utf-8").partition(first)
    _, end, after = rest.partition(last)
    if begin and end:
        readme.write_text(f"{before}{begin}\n{shown}\n{end}{after}", encoding="utf-8")


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()

"""The pages are up to date where that can be checked: the table of ops, links, names of code, counts."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from isoinfer.backends.ops import ALL_OPS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)


def test_the_table_of_ops_is_what_the_declarations_say() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts/ops-table", "--check"])
    assert done.returncode == 0, "run .venv/bin/python scripts/ops-table"


def test_the_table_of_support_is_what_the_backends_say() -> None:
    script = runpy.run_path(str(ROOT / "scripts/support-table"))
    written = (ROOT / "docs/support.md").read_text(encoding="utf-8")
    assert written == script["page"](), "run .venv/bin/python scripts/support-table"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    folders = r"core|backends|conformance|tests|scripts|examples|docs|benchmarks|kernels_\w+"
    paths = [path for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", text) if "_<" not in path]
    missing = [link for link in links if link and not (page.parent / link).exists()]
    assert missing + [path for path in paths if not (ROOT / path).exists()] == []


def test_names_in_the_life_of_a_request_are_in_the_code() -> None:
    page = (ROOT / "docs/structure.md").read_text(encoding="utf-8")
    text = re.sub(r"```.*?```", "", page.partition("## The life of a request")[2], flags=re.DOTALL)
    words = set(re.findall(r"\b([A-Z]\w+\.\w+|[a-z]+_[a-z_]+)\b", " ".join(re.findall(r"`([^`/]+)`", text))))
    code = "\n".join(
        path.read_text(encoding="utf-8") for top in ("core", "backends") for path in (ROOT / top).rglob("*.py")
    )
    names = {word.rpartition(".")[2] for word in words} | {word.partition(".")[0] for word in words}
    names -= set(ALL_OPS)
    assert len(names) > 20
    assert sorted(name for name in names if not re.search(rf"\b(?:class|def) {name}\b|\b{name}: ", code)) == []


def test_counts_of_ops_are_right() -> None:
    words = {8: "eight", 9: "nine", 10: "ten", 11: "eleven", 12: "twelve"}
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"you must bring {words[sum(op.required for op in ALL_OPS.values())]}," in readme
    assert f"*Today*: {len(ALL_OPS)} ops" in (ROOT / "docs/design.md").read_text(encoding="utf-8")

"""Environment variables are a table of at most five, in docs/structure.md; the code reads no other."""

from __future__ import annotations

import re
from pathlib import Path

READ = re.compile(r"""(?:environ\.get\(|environ\[|getenv\()\s*["']?(\w+)""")
TABLE = re.compile(r"^\| `([\w*]+)` \|", re.MULTILINE)
# These two hand the environment on: to a child process, and as a part of a cache key.
WHOLE = {"backends/probe_process.py", "backends/probe_cache.py"}


def test_the_code_reads_only_the_variables_in_the_table(root: Path, sources: dict[str, Path]) -> None:
    page = (root / "docs/structure.md").read_text(encoding="utf-8").partition("## Environment variables")[2]
    table = set(TABLE.findall(page))
    assert 0 < len(table) <= 5
    texts = {name: path.read_text(encoding="utf-8") for name, path in sources.items()}
    assert {name for text in texts.values() for name in READ.findall(text)} == {n for n in table if "*" not in n}
    assert {name for name, text in texts.items() if re.search(r"environ(?!\.get\(|\[|\w)", text)} <= WHOLE

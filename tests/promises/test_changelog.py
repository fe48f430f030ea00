"""The change log's newest entry is the version that is being worked on."""

from __future__ import annotations

import re
from pathlib import Path

from isoinfer import __version__


def test_the_top_version_is_ours(root: Path) -> None:
    entries = re.findall(r"^## \[([^]]+)\]", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert entries[0] == __version__

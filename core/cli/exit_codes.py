"""What the process tells its caller."""

from __future__ import annotations

DONE = 0
SOME_FAILED = 1
USAGE = 2
INTERRUPTED = 130

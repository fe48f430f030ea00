"""The program that loads and probes one plugin in a process of its own, so that it may hang or crash there.

    python -m isoinfer.backends.probe "toy = isoinfer_toy.plugin" isoinfer-toy [RESULT_FILE]

Without RESULT_FILE the result is printed, for plugin authors; the exit status is 1 if it is an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from isoinfer.backends.plugin_source import PluginSource
from isoinfer.backends.probe_result import probe_plugin, to_json

USAGE = 'usage: python -m isoinfer.backends.probe "NAME = MODULE[:ATTRIBUTE]" DISTRIBUTION [RESULT_FILE]'


def main(argv: Sequence[str]) -> int:
    """Probe the plugin in `argv` (see USAGE). Returns the exit status: 0 usable, 1 an error, 2 usage."""
    if len(argv) not in (2, 3) or "=" not in argv[0]:
        print(USAGE, file=sys.stderr)
        return 2
    name, value = (part.strip() for part in argv[0].split("=", 1))
    result = probe_plugin(PluginSource(name=name, value=value, distribution=argv[1], version=""))
    if len(argv) == 3:
        Path(argv[2]).write_text(to_json(result), encoding="utf-8")
        # The answer is out: threads and exit handlers that a vendor's library left behind cannot hold us.
        os._exit(0)
    print(to_json(result))
    return 0 if result.error is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The protocol between the benchmark and one engine in an environment of its own: JSON lines.

stdin:  {"prompts": [[token ids]], "max_tokens": [n, ...]}   stdout: {"seconds": s, "output_tokens": n, ...}
The first line out, after loading and a warm-up, is {"ready": true, "versions": {...}, "notes": "..."}.
Each engine gives a function that generates greedily, ignoring end tokens, and returns the tokens it made. What an
engine counts besides is in the answer too: how much it grew during the job.
Needs only the standard library, since it runs in every peer's environment.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable

Generate = Callable[[list[list[int]], list[int]], int]
Counts = Callable[[], dict[str, int]]

PROTOCOL = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # from here on, whatever the engine prints goes to stderr and not into the protocol


def serve(packages: list[str], notes: str, generate: Generate, counts: Counts = dict) -> None:
    """Warm up, announce, then answer one job a line until stdin ends."""
    generate([[100 + i for i in range(32)]] * 2, [8, 8])
    versions = {name: importlib.metadata.version(name) for name in packages}
    print(json.dumps({"ready": True, "versions": versions, "notes": notes}), file=PROTOCOL, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        before = counts()
        start = time.perf_counter()
        count = generate(job["prompts"], job["max_tokens"])
        seconds = time.perf_counter() - start
        grown = {name: value - before[name] for name, value in counts().items()}
        print(json.dumps({"seconds": seconds, "output_tokens": count, **grown}), file=PROTOCOL, flush=True)

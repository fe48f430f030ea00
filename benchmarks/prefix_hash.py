"""What the prefix cache costs the host: naming the blocks of a prompt, and finding and publishing them.

    python benchmarks/prefix_hash.py [--num-tokens 8192]

Prints the median and the best of many runs for some block sizes. The goal is 0.5 ms for naming 8192
tokens in blocks of 16.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np

from isoinfer.kv.group_blocks import KVGroup
from isoinfer.kv.manager import KVManager
from isoinfer.kv.prefix_hash import HashChain

REPEATS = 50
NOW = -1  # a fence that has settled


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-tokens", type=int, default=8192)
    num_tokens = parser.parse_args().num_tokens
    tokens_L = np.random.default_rng(0).integers(0, 128_000, num_tokens).astype(np.int32)
    print(f"{num_tokens} tokens, median (best) of {REPEATS} runs in ms, load {os.getloadavg()[0]:.1f}")
    print("| block size | name all | look up, all cached | publish all |\n|---|---|---|---|")
    for block_size in (16, 64, 128):
        print(f"| {block_size} | {' | '.join(_row(tokens_L, block_size))} |")


def _row(tokens_L: np.ndarray[tuple[int], np.dtype[np.int32]], block_size: int) -> list[str]:
    num_blocks = tokens_L.size // block_size
    kv = KVManager(
        [KVGroup(name="full", num_blocks=2 * num_blocks + 2)],
        block_size=block_size,
        num_slots=1,
        max_tokens=tokens_L.size,
        step_tokens=tokens_L.size,
    )
    slot_R, confirmed_R = np.zeros(1, dtype=np.int32), np.array([tokens_L.size], dtype=np.int32)

    def name() -> None:
        HashChain(block_size=block_size, key=b"").extend(tokens_L, num_blocks)

    def publish() -> None:
        kv.settle(slot_R, confirmed_R, NOW)

    def occupy() -> None:
        if kv.tables(0, slot_R).any():
            kv.release(0, NOW)
        keys.append(b"%d" % len(keys))
        kv.admit(0, tokens_L, keys[-1], None)
        assert kv.extend(0, tokens_L.size)

    def look_up() -> None:
        kv.lookup(tokens_L, keys[-1])

    keys: list[bytes] = []
    times = [_times(name), _times(publish, occupy), _times(look_up)]
    named, published, found = (f"{statistics.median(run):.3f} ({min(run):.3f})" for run in times)
    return [named, found, published]


def _times(fn: Callable[[], None], prepare: Callable[[], None] = lambda: None) -> list[float]:
    """Milliseconds of each run of `fn`, `prepare` not counted."""
    times = []
    for _ in range(REPEATS):
        prepare()
        started = time.perf_counter()
        fn()
        times.append((time.perf_counter() - started) * 1e3)
    return times


if __name__ == "__main__":
    main()

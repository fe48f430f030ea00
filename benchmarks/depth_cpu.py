"""Both depths and both streams of the CPU backend on a real model: which default is the faster one.

    python benchmarks/depth_cpu.py [--store]

Each combination is a worker of its own; they take turns while the others are stopped. `inline` computes on the
host's thread, so that nothing overlaps; `thread` gives one core to a worker thread.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics

from stored import add_store_option, store, table
from turns import Job, Worker, demo_model, isoinfer, workers

DEFAULT = "depth 1, inline"
COMBINATIONS = {
    f"depth {depth}, {stream}": {"scheduling_depth": depth, "backend_options": {"stream": stream}}
    for stream in ("inline", "thread")
    for depth in (1, 2)
}


def jobs(numbers: list[int], max_tokens: int) -> list[Job]:
    """Random prompts of 128 tokens, so many at once."""
    rng = random.Random(0)
    return [
        Job(
            name=f"{number} request{'s' if number > 1 else ''}, 128 + {max_tokens} tokens",
            prompts=[[rng.randrange(1000, 40000) for _ in range(128)] for _ in range(number)],
            max_tokens=[max_tokens] * number,
        )
        for number in numbers
    ]


def depth_table(found: list[Worker], todo: list[Job]) -> str:
    """Medians, spread, and how much faster each is than the default."""
    default = next(worker for worker in found if worker.name == DEFAULT)
    rows = []
    for job in todo:
        for worker in found:
            rates = worker.rates[job.name]
            ratio = statistics.median(rates) / statistics.median(default.rates[job.name])
            spread = f"{min(rates):.1f} - {max(rates):.1f}"
            rows.append([job.name, worker.name, f"{statistics.median(rates):.1f}", spread, f"{ratio:.2f}"])
    return table(["job", "engine", "output tokens/s (median)", "min - max", f"over {DEFAULT}"], rows)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file (default: the demo's model)")
    parser.add_argument("--num-requests", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    add_store_option(parser)
    args = parser.parse_args()
    model, todo = os.path.abspath(args.model or demo_model()), jobs(args.num_requests, args.max_tokens)
    with workers({name: isoinfer(model, **options) for name, options in COMBINATIONS.items()}) as found:
        for repeat in range(args.repeats):
            print(f"repeat {repeat + 1}", flush=True)
            for job in todo:
                for worker in found:
                    worker.run(job)
    shown = depth_table(found, todo)
    print(shown)
    if args.store:
        about = f"SmolLM2-135M-Instruct, greedy; medians of {args.repeats} repeats, interleaved. executed_on: device."
        record = {"executed_on": "device", "repeats": args.repeats, "engines": {w.name: w.record() for w in found}}
        notes = "\n".join(f"- {worker.name}: {worker.notes}; {worker.describe_load()}" for worker in found)
        store("depth_cpu", record, title="Depths and streams on the CPU", about=about, shown=shown, notes=notes)


if __name__ == "__main__":
    main()

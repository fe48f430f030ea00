"""Compares isoinfer with other engines on the same prompts, interleaved, each in its own environment.

    python benchmarks/peers.py --quantized --peer vllm=/path/to/python --peer llama_cpp=... [--store]

Every engine loads once; in each repeat each runs every job in turn while the others are stopped
(SIGSTOP), so that no spinning thread disturbs it. Medians and ratios to us are printed, with the load
average before each run. `--store` writes benchmarks/results/peers.json and .md, and the table in README.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile

from stored import add_store_option, store, table
from turns import WORKERS, Job, Worker, demo_model, isoinfer, workers

STATIC_BATCHES = ("transformers",)  # pad every request to the longest: not run on the job of mixed lengths
READS_GGUF = ("llama_cpp",)


def jobs(seed: int) -> list[Job]:
    """The three jobs of the comparison; prompts are random token ids, the same for every engine."""
    rng = random.Random(seed)

    def prompt(length: int) -> list[int]:
        return [rng.randrange(1000, 40000) for _ in range(length)]

    mixed = [(rng.randint(16, 256), rng.randint(16, 256)) for _ in range(128)]
    return [
        Job(name="1 request, 128 + 64 tokens", prompts=[prompt(128)], max_tokens=[64]),
        Job(name="32 requests, 128 + 64 tokens", prompts=[prompt(128) for _ in range(32)], max_tokens=[64] * 32),
        Job(
            name="128 requests, 16-256 + 16-256 tokens",
            prompts=[prompt(p) for p, _ in mixed],
            max_tokens=[n for _, n in mixed],
        ),
    ]


def commands(model: str, folder: str, peers: dict[str, str], quantized: bool) -> dict[str, list[str]]:
    """How to start each worker."""
    found = {"isoinfer": isoinfer(model)}
    found |= {f"isoinfer_{form}": isoinfer(model, quantization=form) for form in ("int8", "int4") if quantized}
    for name, python in peers.items():
        found[name] = [python, f"{name}_worker.py", model if name in READS_GGUF else folder]
    return found


def rates_table(engines: list[Worker], todo: list[Job]) -> str:
    """Medians of output tokens per second, spread, and the ratio of isoinfer to each."""
    ours = next(engine for engine in engines if engine.name == "isoinfer")
    rows = []
    for job in todo:
        reference = statistics.median(ours.rates[job.name])
        for engine in (e for e in engines if job.name in e.rates):
            rates = engine.rates[job.name]
            median = statistics.median(rates)
            spread = f"{min(rates):.1f} - {max(rates):.1f}"
            rows.append([job.name, engine.name, f"{median:.1f}", spread, f"{reference / median:.2f}"])
    return table(["job", "engine", "output tokens/s (median)", "min - max", "isoinfer / engine"], rows)


def store_rates(engines: list[Worker], todo: list[Job], shown: str) -> None:
    """Write the results with versions and machine."""
    record = {
        "executed_on": "device",
        "repeats": {job.name: len(engines[0].rates[job.name]) for job in todo},
        "engines": {engine.name: engine.record() for engine in engines},
    }
    notes = "\n".join(f"- {e.name}: {', '.join(f'{k} {v}' for k, v in e.versions.items())}; {e.notes}" for e in engines)
    about = "SmolLM2-135M-Instruct, greedy, end tokens ignored; medians, interleaved. executed_on: device."
    store("peers", record, title="Peers", about=about, shown=shown, notes=notes)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a Llama-architecture GGUF file (default: the demo's model)")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=PYTHON", help="vllm, llama_cpp, transformers"
    )
    parser.add_argument("--quantized", action="store_true", help="also run isoinfer with int8 and int4 weights")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mixed-repeats", type=int, default=3, help="repeats of the job of mixed lengths")
    parser.add_argument("--seed", type=int, default=0)
    add_store_option(parser)
    args = parser.parse_args()
    model = os.path.abspath(args.model or demo_model())
    todo = jobs(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(WORKERS / "export_checkpoint.py"), model, folder], check=True)
        peers = dict(peer.split("=", 1) for peer in args.peer)
        with workers(commands(model, folder, peers, args.quantized)) as engines:
            for repeat in range(args.repeats):
                print(f"repeat {repeat + 1}", flush=True)
                for job in todo:
                    if job.mixed and repeat >= args.mixed_repeats:
                        continue
                    for engine in engines:
                        if not (job.mixed and engine.name in STATIC_BATCHES):
                            engine.run(job)
    shown = rates_table(engines, todo)
    print(shown)
    if args.store:
        store_rates(engines, todo, shown)


if __name__ == "__main__":
    main()

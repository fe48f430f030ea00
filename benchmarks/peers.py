"""Compares isoinfer with other engines on the same prompts, interleaved, each in its own environment.

    python benchmarks/peers.py --quantized --peer vllm=/path/to/python --peer llama_cpp=... [--store]

Every engine loads once; in each repeat each runs every job in turn while the others are stopped
(SIGSTOP), so that no spinning thread disturbs it. Medians and ratios to us are printed, with the load
average before each run. `--store` writes benchmarks/results/peers.json and .md, and the table in README.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WORKERS = HERE / "peers"
STATIC_BATCHES = ("transformers",)  # pad every request to the longest: not run on the job of mixed lengths
GGUF_ENGINES = ("isoinfer", "isoinfer_int8", "isoinfer_int4", "llama_cpp")

README_BEGIN, README_END = "<!-- peers:begin -->", "<!-- peers:end -->"


@dataclass(frozen=True)
class Job:
    """Prompts of token ids and how many tokens to make of each."""

    name: str
    prompts: list[list[int]]
    max_tokens: list[int]

    @property
    def mixed(self) -> bool:
        """Whether requests differ in length."""
        return len(set(self.max_tokens)) > 1


@dataclass
class Engine:
    """A running worker and what it measured."""

    name: str
    process: subprocess.Popen[str]
    versions: dict[str, str] = field(default_factory=dict)
    notes: str = ""
    rates: dict[str, list[float]] = field(default_factory=dict)
    load_before: dict[str, list[float]] = field(default_factory=dict)

    def signal(self, number: int) -> None:
        """Stop or continue the worker and its children."""
        os.killpg(self.process.pid, number)

    def read(self) -> dict[str, Any]:
        """The next protocol line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with status {self.process.wait()}; see its messages above")
        message: dict[str, Any] = json.loads(line)
        return message


def jobs(seed: int) -> list[Job]:
    """The three jobs of the comparison; prompts are random token ids, the same for every engine."""
    rng = random.Random(seed)

    def prompt(length: int) -> list[int]:
        return [rng.randrange(1000, 40000) for _ in range(length)]

    mixed = [(rng.randint(16, 256), rng.randint(16, 256)) for _ in range(128)]
    return [
        Job("1 request, 128 + 64 tokens", [prompt(128)], [64]),
        Job("32 requests, 128 + 64 tokens", [prompt(128) for _ in range(32)], [64] * 32),
        Job("128 requests, 16-256 + 16-256 tokens", [prompt(p) for p, _ in mixed], [n for _, n in mixed]),
    ]


def start(name: str, python: str, model: str, folder: str) -> Engine:
    """Load one engine and stop it until its turn."""
    script = WORKERS / f"{re.sub('_int[48]$', '', name)}_worker.py"
    args = [python, str(script), model if name in GGUF_ENGINES else folder]
    args += [name[-4:]] if name.startswith("isoinfer_") else []
    process = subprocess.Popen(
        args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=WORKERS
    )
    engine = Engine(name, process)
    ready = engine.read()
    engine.versions, engine.notes = ready["versions"], ready["notes"]
    engine.signal(signal.SIGSTOP)
    return engine


def measure(engine: Engine, job: Job) -> None:
    """Let one engine run one job while all others are stopped."""
    time.sleep(1)
    engine.load_before.setdefault(job.name, []).append(os.getloadavg()[0])
    engine.signal(signal.SIGCONT)
    assert engine.process.stdin is not None
    engine.process.stdin.write(json.dumps({"prompts": job.prompts, "max_tokens": job.max_tokens}) + "\n")
    engine.process.stdin.flush()
    answer = engine.read()
    engine.signal(signal.SIGSTOP)
    assert answer["output_tokens"] == sum(job.max_tokens), (engine.name, answer)
    engine.rates.setdefault(job.name, []).append(answer["output_tokens"] / answer["seconds"])
    print(f"  {job.name:40} {engine.name:14} {engine.rates[job.name][-1]:8.1f} tokens/s", flush=True)


def table(engines: list[Engine], todo: list[Job]) -> str:
    """Medians of output tokens per second, spread, and the ratio of isoinfer to each."""
    ours = next(engine for engine in engines if engine.name == "isoinfer")
    lines = ["| job | engine | output tokens/s (median) | min - max | isoinfer / engine |", "|---|---|---|---|---|"]
    for job in todo:
        reference = statistics.median(ours.rates[job.name])
        for engine in (e for e in engines if job.name in e.rates):
            rates = engine.rates[job.name]
            median = statistics.median(rates)
            ratio = f"{reference / median:.2f}"
            lines.append(
                f"| {job.name} | {engine.name} | {median:.1f} | {min(rates):.1f} - {max(rates):.1f} | {ratio} |"
            )
    return "\n".join(lines)


def store(engines: list[Engine], todo: list[Job], text: str) -> None:
    """Write the results with versions and machine."""
    machine = {"cpu": _cpu_name(), "cores": os.cpu_count(), "python": platform.python_version()}
    record = {
        "date": time.strftime("%Y-%m-%d"),
        "executed_on": "device",
        "machine": machine,
        "repeats": {job.name: len(engines[0].rates[job.name]) for job in todo},
        "engines": {
            e.name: {"versions": e.versions, "notes": e.notes, "tokens_per_second": e.rates, "load": e.load_before}
            for e in engines
        },
    }
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    (results / "peers.json").write_text(json.dumps(record, indent=1) + "\n")
    versions = "\n".join(
        f"- {e.name}: {', '.join(f'{k} {v}' for k, v in e.versions.items())}; {e.notes}" for e in engines
    )
    head = f"# Peers, {record['date']}\n\nSmolLM2-135M-Instruct, greedy, end tokens ignored; medians, "
    head += f"interleaved, on the same machine ({machine['cpu']}, {machine['cores']} cores). executed_on: device\n\n"
    (results / "peers.md").write_text(f"{head}{text}\n\n{versions}\n")
    readme = HERE.parent / "README.md"
    before, begin, rest = readme.read_text().partition(README_BEGIN)
    _, end, after = rest.partition(README_END)
    readme.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def demo_model() -> str:
    """The demo's GGUF, as the project's own script finds it."""
    found = subprocess.run(
        [sys.executable, HERE.parent / "scripts/demo-model"], check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


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
    parser.add_argument("--store", action="store_true", help="write benchmarks/results/peers.{json,md}")
    args = parser.parse_args()
    model = os.path.abspath(args.model or demo_model())
    todo, engines = jobs(args.seed), []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(WORKERS / "export_checkpoint.py"), model, folder], check=True)
        chosen = [("isoinfer", sys.executable)]
        chosen += [(f"isoinfer_{form}", sys.executable) for form in ("int8", "int4") if args.quantized]
        try:
            for name, python in chosen + [tuple(peer.split("=", 1)) for peer in args.peer]:
                engines.append(start(name, python, model, folder))
                print(f"{name}: {engines[-1].versions} {engines[-1].notes}", flush=True)
            for repeat in range(args.repeats):
                print(f"repeat {repeat + 1}", flush=True)
                for job in todo:
                    if job.mixed and repeat >= args.mixed_repeats:
                        continue
                    for engine in engines:
                        if not (job.mixed and engine.name in STATIC_BATCHES):
                            measure(engine, job)
        finally:
            for engine in engines:
                engine.signal(signal.SIGCONT)
                engine.signal(signal.SIGKILL)
    text = table(engines, todo)
    print(text)
    if args.store:
        store(engines, todo, text)


if __name__ == "__main__":
    main()

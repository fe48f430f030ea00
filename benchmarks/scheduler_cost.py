"""What the scheduler costs the host in each round, beside vLLM's in the same run.

    python benchmarks/scheduler_cost.py --vllm /path/to/python [--store]

All requests decode (prompts of 64 tokens, blocks of 16, prefix cache on) and the device's answers are made up, so
what is measured is schedule, sample_plan and settle, and with "text" stop strings and detokenising too. Engines
take turns; nothing else runs meanwhile. Times are processor time of the thread: means over whole multiples of 16
rounds, since a new block costs something, then the median of the repeats. Without --vllm ours alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from scheduler_load import LOADS, Cost, cost
from stored import add_store_option, load, store, table, versions
from turns import demo_model

from isoinfer.weights.open import open_checkpoint

PEERS = Path(__file__).parent / "peers"
NUMBERS, DEPTHS = (1, 16, 64, 256, 1024), (1, 2)
GOAL_US, GOAL_AT = 4.0, 256


@dataclass(slots=True)
class Measured:
    """What was measured of one case, once a repeat, and the load of the machine before each."""

    name: str
    num_requests: int
    depth: int
    costs: list[Cost] = field(default_factory=list)
    load: list[float] = field(default_factory=list)

    @property
    def per_request(self) -> float:
        """Microseconds a request and round."""
        return statistics.median(cost.cpu_us for cost in self.costs) / self.num_requests

    def row(self) -> list[object]:
        """For the long table."""
        cpu = [cost.cpu_us for cost in self.costs]
        wall = statistics.median(cost.wall_us for cost in self.costs)
        spread, tokens = f"{min(cpu):.0f} - {max(cpu):.0f}", statistics.median(cost.tokens for cost in self.costs)
        median = f"{statistics.median(cpu):.0f}"
        return [self.num_requests, self.depth, self.name, median, spread, f"{wall:.0f}", f"{tokens:.2f}"]


class Vllm:
    """vLLM's scheduler in its own environment; it sleeps while it is not asked."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, "vllm_scheduler_worker.py"],
            cwd=PEERS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin: TextIO = self._process.stdin
        self._stdout: TextIO = self._process.stdout
        self.versions: dict[str, str] = self._read()["versions"]

    def cost(self, num_requests: int, depth: int, rounds: int, *, all_features: bool) -> Cost:
        """As `scheduler_load.cost`."""
        wanted = {"num_requests": num_requests, "depth": depth, "rounds": rounds, "all_features": all_features}
        self._stdin.write(json.dumps(wanted) + "\n")
        self._stdin.flush()
        return Cost(**self._read())

    def close(self) -> None:
        """End the process."""
        self._stdin.close()
        self._process.wait(timeout=60)

    def _read(self) -> dict[str, Any]:
        line = self._stdout.readline()
        if not line:
            raise RuntimeError(
                f"the vLLM worker ended with status {self._process.wait()}; run {PEERS} by hand to see why"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> None:
    """Measure, print, store."""
    args = _arguments()
    tokenizer = open_checkpoint(args.model or demo_model()).tokenizer()
    vllm = Vllm(args.vllm) if args.vllm else None
    found: dict[tuple[str, int, int], Measured] = {}

    def note(name: str, num_requests: int, depth: int, measured: Cost) -> None:
        case = found.setdefault((name, num_requests, depth), Measured(name, num_requests, depth))
        case.costs.append(measured)
        case.load.append(load())

    for repeat in range(args.repeats):
        print(f"repeat {repeat + 1}, load {load()}", flush=True)
        for num_requests in args.num_requests:
            for depth in DEPTHS:
                for wanted in LOADS:
                    note(wanted.name, num_requests, depth, cost(wanted, num_requests, depth, args.rounds, tokenizer))
                if vllm is not None:
                    for name, all_features in _vllm_loads(depth):
                        measured = vllm.cost(num_requests, depth, args.rounds, all_features=all_features)
                        note(name, num_requests, depth, measured)
    if vllm is not None:
        vllm.close()
    shown = per_request_table(found)
    print(shown, goal(found), sep="\n\n")
    if args.store:
        _store(found, shown, args, {} if vllm is None else vllm.versions)


def _vllm_loads(depth: int) -> list[tuple[str, bool]]:
    """Its n-gram drafts are made on the host, for which depth 2 does not fit."""
    return [("vLLM, plain", False), *([("vLLM, all features", True)] if depth == 1 else [])]


def per_request_table(found: dict[tuple[str, int, int], Measured]) -> str:
    """Microseconds a request and round, by number of requests and depth."""
    names = list(dict.fromkeys(name for name, _, _ in found))
    places = list(dict.fromkeys((num, depth) for _, num, depth in found))
    rows = [
        [
            num,
            depth,
            *(f"{found[name, num, depth].per_request:.1f}" if (name, num, depth) in found else "" for name in names),
        ]
        for num, depth in places
    ]
    return table(["running requests", "depth", *(f"{name} (µs a request)" for name in names)], rows)


def goal(found: dict[tuple[str, int, int], Measured]) -> str:
    """Whether the goal is reached: all features, no text, at 256 requests."""
    cases = [case for case in found.values() if case.num_requests == GOAL_AT and case.name in ("plain", "all features")]
    each = "; ".join(f"{case.name}, depth {case.depth}: {case.per_request:.1f}" for case in cases)
    if not cases:
        return f"Goal of {GOAL_US:g} µs a request at {GOAL_AT}: nothing was measured there."
    reached = all(case.per_request <= GOAL_US for case in cases)
    return f"Goal of {GOAL_US:g} µs a request at {GOAL_AT}: {'reached' if reached else 'not reached'} ({each})."


def _store(
    found: dict[tuple[str, int, int], Measured], shown: str, args: argparse.Namespace, peer: dict[str, str]
) -> None:
    used = {**versions("isoinfer", "numpy"), **peer}
    about = (
        f"Host time of a round in which all requests decode, medians of {args.repeats} repeats of {args.rounds} "
        "rounds, interleaved; processor time of the thread. All features: policy `priority`, priorities, stop ids, "
        "five n-gram drafts a row of which a random number is accepted, so that a request gets 3.5 tokens a round. "
        "Text: detokenising and three stop strings. vLLM's numbers lack what its model runner does: it makes the "
        "sampling arrays there, isoinfer's are in `sample_plan`. executed_on: device. " + _loads(found)
    )
    long = table(
        ["running", "depth", "what", "µs a round", "min - max", "µs on the wall", "tokens a request"],
        [case.row() for case in found.values()],
    )
    notes = f"{goal(found)}\n\n{long}\n\nVersions: {', '.join(f'{k} {v}' for k, v in used.items())}"
    cases = [asdict(case) for case in found.values()]
    record = {"executed_on": "device", "rounds": args.rounds, "repeats": args.repeats, "versions": used, "cases": cases}
    store("scheduler_cost", record, title="Cost of the scheduler", about=about, shown=shown, notes=notes)


def _loads(found: dict[tuple[str, int, int], Measured]) -> str:
    loads = [value for case in found.values() for value in case.load]
    return f"Load average during the run: {min(loads)} to {max(loads)}."


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file or folder for its tokenizer (default: the demo's model)")
    parser.add_argument("--vllm", metavar="PYTHON", help="a Python that has vLLM")
    parser.add_argument("--num-requests", type=int, nargs="+", default=NUMBERS)
    parser.add_argument("--rounds", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=5)
    add_store_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""What working one step ahead hides, on the simulated device: exposed host time, throughput, wasted rows.

    python benchmarks/overlap.py [--store]

The scheduler, the KV manager and the runner are the real ones; the device is simulated and takes 5 ms a step.
1. Exposed host time: how long the device is idle between two steps, on the real clock.
2. Throughput of depth 2 over depth 1 where host and device cost 1:2, on the virtual clock, where the host's price is
   fixed, and on the real one, where its work is filled up to that time.
3. Wasted rows for each finished request, by how it finished, with and without drafts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from stored import add_store_option, load, store, table, versions

from isoinfer.backends.simulated import Simulated, SimulatedTimes
from isoinfer.bench.measure import Run, measure
from isoinfer.bench.simulate import SimulatedEngine, named_model, simulated_engine
from isoinfer.config import EngineConfig, SchedulerConfig
from isoinfer.engine.messages import AddRequest, CoreSampling
from isoinfer.speculation.config import parse_speculative

MODEL, EOS = "smollm2-135m", 2
DEVICE_MS, HOST_MS = 5.0, 2.5
PROMPT, OUTPUT = 64, 256
MAX_SEQS, LONGEST = 256, 4 * OUTPUT - 1
EXPOSED_NUMBERS = (64, 256)
ENDS = {"eos_every": "60", "eos_token": str(EOS)}
TEXT = {"predictable": "8"}
"""One token in eight is new, so that some drafts are right."""
GOAL_EXPOSED_US, GOAL_SPEED_UP, IDEAL_SPEED_UP = 100.0, 1.45, (DEVICE_MS + HOST_MS) / DEVICE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number with its goal, `goal` in words; `case` says of what, `values` are those of the repeats."""

    what: str
    case: str
    values: list[float]
    unit: str
    goal: str = ""

    def row(self) -> list[str]:
        """For the table."""
        low, high = min(self.values), max(self.values)
        spread = f"{low:.3g} - {high:.3g}" if low != high else ""
        return [self.what, self.case, f"{statistics.median(self.values):.3g} {self.unit}".strip(), spread, self.goal]


def engine(depth: int, *, speculative: str | None = None, **options: str) -> SimulatedEngine:
    """A small dense model's KV on a device of `options`."""
    config = EngineConfig(
        model="",
        backend="sim",
        max_model_len=PROMPT + 4 * OUTPUT,
        speculative=None if speculative is None else parse_speculative(speculative),
        scheduler=SchedulerConfig(max_num_seqs=MAX_SEQS, max_num_batched_tokens=8192, scheduling_depth=depth),
    )
    given = {"step_ms": str(DEVICE_MS), "memory": str(16 << 30), **options}
    return simulated_engine(config, named_model(MODEL), count=1, options=given)


def requests(
    number: int, vocab_size: int, *, output: int = OUTPUT, stops: tuple[int, ...] = ()
) -> Iterator[AddRequest]:
    """So many, greedy, with prompts of their own."""
    rng = np.random.default_rng(0)
    for index in range(number):
        yield AddRequest(
            request_id=f"r{index}",
            prompt_token_ids=rng.integers(EOS + 1, vocab_size, PROMPT).astype(np.int32),
            sampling=CoreSampling(max_tokens=output, seed=index, temperature=0.0, stop_token_ids=stops),
        )


def run(
    made: SimulatedEngine, mix: Iterator[AddRequest], pad: Callable[[], None] = lambda: None
) -> tuple[Run, SimulatedTimes]:
    """Run a mix to its end; `pad` is called after each step."""
    assert isinstance(made.backend, Simulated)
    done = measure(made.engine, mix, now=made.backend.now, show=lambda finished, tokens: pad())
    return done, made.backend.times()


def exposed(repeats: int) -> Iterator[Figure]:
    """Device idle between steps on the real clock."""
    for number in EXPOSED_NUMBERS:
        for depth in (1, 2):
            times = []
            for _ in range(repeats):
                made = engine(depth, clock="real")
                times.append(run(made, requests(number, made.vocab_size))[1])
            case = f"{number} requests, depth {depth}"
            goal = f"under {GOAL_EXPOSED_US:g} µs" if depth == 2 else ""
            yield Figure(
                what="exposed host time p50", case=case, values=[t.exposed_us_p50 for t in times], unit="µs", goal=goal
            )
            yield Figure(what="exposed host time p99", case=case, values=[t.exposed_us_p99 for t in times], unit="µs")


def speed_up_virtual(number: int = 64) -> Figure:
    """Throughput of depth 2 over depth 1; the host's price of a round is fixed."""
    seconds = []
    for depth in (1, 2):
        made = engine(depth, host_us=str(HOST_MS * 1e3))
        seconds.append(run(made, requests(number, made.vocab_size))[0].seconds)
    return _speed_up("virtual clock", [seconds[0] / seconds[1]])


def speed_up_real(repeats: int, number: int = 64) -> Figure:
    """The same on the real clock: after each step the host works on until it has worked for HOST_MS."""
    ratios = []
    for _ in range(repeats):
        made = engine(1)
        times = run(made, requests(number, made.vocab_size))[1]
        missing = max(HOST_MS * 1e-3 - times.host_s / times.rounds, 0.0)
        seconds = []
        for depth in (1, 2):
            made = engine(depth, clock="real")
            mix = requests(number, made.vocab_size)
            seconds.append(run(made, mix, partial(_work, missing))[0].seconds)
        ratios.append(seconds[0] / seconds[1])
    return _speed_up("real clock", ratios)


def wasted(number: int = 256) -> Iterator[Figure]:
    """Wasted rows for each finished request on the virtual clock."""
    for finish in ("length", "EOS"):
        for drafts in (None, "ngram:5", "suffix:5"):
            for depth in (1, 2):
                made = engine(
                    depth, speculative=drafts, **(ENDS if finish == "EOS" else {}), **(TEXT if drafts else {})
                )
                output, stops = (LONGEST, (EOS,)) if finish == "EOS" else (OUTPUT, ())
                done, _ = run(made, requests(number, made.vocab_size, output=output, stops=stops))
                yield Figure(
                    what="wasted rows a request",
                    case=f"{finish} finishes, {drafts or 'no drafts'}, depth {depth}",
                    values=[done.counts.wasted_rows / len(done.requests)],
                    unit="",
                    goal="0" if depth == 1 or (finish == "length" and drafts is None) else "at most 1",
                )


def _speed_up(clock: str, ratios: list[float]) -> Figure:
    case = f"{clock}, 64 requests, host {HOST_MS:g} ms, device {DEVICE_MS:g} ms"
    goal = f"at least {GOAL_SPEED_UP:g} (ideal {IDEAL_SPEED_UP:g})"
    return Figure(what="throughput, depth 2 over depth 1", case=case, values=ratios, unit="", goal=goal)


def _work(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    add_store_option(parser)
    args = parser.parse_args()
    loads, figures = [load()], []
    for figure in _all(args.repeats):
        print(*figure.row(), sep=" | ", flush=True)
        figures.append(figure)
        loads.append(load())
    shown = table(["figure", "case", "median", "min - max", "goal"], [figure.row() for figure in figures])
    if args.store:
        _store(figures, loads, shown, args.repeats)


def _all(repeats: int) -> Iterator[Figure]:
    yield from exposed(repeats)
    yield speed_up_virtual()
    yield speed_up_real(repeats)
    yield from wasted()


def _store(figures: list[Figure], loads: list[float], shown: str, repeats: int) -> None:
    used: dict[str, Any] = versions("isoinfer", "torch", "numpy")
    about = (
        f"Simulated device of {DEVICE_MS:g} ms a step, prompts of {PROMPT} tokens, answers of {OUTPUT} or up to an end "
        "token; the host's work is real. Nothing here was measured on such a device; executed_on: emulated. "
        f"{repeats} repeats on the real clock. Load average during the run: {min(loads)} to {max(loads)}."
    )
    record = {
        "executed_on": "emulated",
        "repeats": repeats,
        "load": loads,
        "versions": used,
        "figures": [asdict(figure) for figure in figures],
    }
    store("overlap", record, title="One step ahead on a simulated device", about=about, shown=shown)


if __name__ == "__main__":
    main()

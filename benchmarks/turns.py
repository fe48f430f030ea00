"""Workers that take turns: each is a process of its own, stopped (SIGSTOP) while another one is measured.

So no spinning thread of one disturbs another. The protocol is that of benchmarks/peers/worker.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stored import load

HERE = Path(__file__).parent
WORKERS = HERE / "peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Prompts of token ids and how many tokens to make of each."""

    name: str
    prompts: Sequence[Sequence[int]]
    max_tokens: Sequence[int]

    @property
    def mixed(self) -> bool:
        """Whether requests differ in length."""
        return len(set(self.max_tokens)) > 1


@dataclass(slots=True, kw_only=True)
class Worker:
    """A running worker and, by job, what it measured: tokens/s, the load before, and what else it said of the last."""

    name: str
    process: subprocess.Popen[str]
    versions: dict[str, str] = field(default_factory=dict)
    notes: str = ""
    rates: dict[str, list[float]] = field(default_factory=dict)
    load_before: dict[str, list[float]] = field(default_factory=dict)
    said: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, job: Job) -> None:
        """Continue, do one job, stop again."""
        time.sleep(1)
        self.load_before.setdefault(job.name, []).append(load())
        self.signal(signal.SIGCONT)
        assert self.process.stdin is not None
        wanted = {"prompts": job.prompts, "max_tokens": job.max_tokens}
        self.process.stdin.write(json.dumps(wanted) + "\n")
        self.process.stdin.flush()
        answer = self.read()
        self.signal(signal.SIGSTOP)
        assert answer["output_tokens"] == sum(job.max_tokens), (self.name, answer)
        self.said[job.name] = answer
        self.rates.setdefault(job.name, []).append(answer["output_tokens"] / answer["seconds"])
        print(f"  {job.name:40} {self.name:16} {self.rates[job.name][-1]:8.1f} tokens/s", flush=True)

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

    def describe_load(self) -> str:
        """The load average that its runs began with: what else ran, and the turns before it."""
        loads = [value for values in self.load_before.values() for value in values]
        return f"load before its runs {min(loads)} to {max(loads)}"

    def record(self) -> dict[str, Any]:
        """For the stored results."""
        return {
            "versions": self.versions,
            "notes": self.notes,
            "tokens_per_second": self.rates,
            "load": self.load_before,
        }


def start(name: str, command: Sequence[str]) -> Worker:
    """Load one worker and stop it until its turn. `command`: Python, the worker's file, and its arguments."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=WORKERS
    )
    worker = Worker(name=name, process=process)
    ready = worker.read()
    worker.versions, worker.notes = ready["versions"], ready["notes"]
    worker.signal(signal.SIGSTOP)
    print(f"{name}: {worker.versions} {worker.notes}", flush=True)
    return worker


def isoinfer(model: str, **options: Any) -> list[str]:
    """The command of a worker of our own; `options` are keywords of LLM."""
    return [sys.executable, "isoinfer_worker.py", model, json.dumps(options)]


@contextmanager
def workers(commands: Mapping[str, Sequence[str]]) -> Iterator[list[Worker]]:
    """Start all, by name; end all."""
    started: list[Worker] = []
    try:
        for name, command in commands.items():
            started.append(start(name, command))
        yield started
    finally:
        for worker in started:
            worker.signal(signal.SIGCONT)
            worker.signal(signal.SIGKILL)
            with worker.process:  # closes its pipes and waits for it
                pass


def demo_model() -> str:
    """The demo's GGUF, as the project's own script finds it."""
    found = subprocess.run(
        [sys.executable, HERE.parent / "scripts/demo-model"], check=True, capture_output=True, text=True
    )
    return found.stdout.strip()

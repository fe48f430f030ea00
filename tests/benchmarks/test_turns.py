"""Workers take turns, each stopped while it is not asked; the tables made of what they measured."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

WORKER = """
import sys
sys.path.insert(0, {folder!r})
from worker import serve
total = [0]
def generate(prompts, max_tokens):
    total[0] += 3
    return sum(max_tokens)
serve([], "a worker", generate, lambda: {{"draft_tokens": total[0], "accepted_tokens": 1}})
"""


def _state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the state of a process is read from /proc")
def test_a_worker_is_stopped_between_its_turns(program, tmp_path, monkeypatch):
    turns = program("turns")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    script = tmp_path / "some_worker.py"
    script.write_text(WORKER.format(folder=str(turns.WORKERS)), encoding="utf-8")
    job = turns.Job(name="a job", prompts=[[1, 2], [3]], max_tokens=[4, 5])
    assert job.mixed
    with turns.workers({"one": [sys.executable, str(script)]}) as (worker,):
        assert worker.notes == "a worker"
        pid = worker.process.pid
        assert _stopped(pid)
        worker.run(job)
        worker.run(job)
        assert _stopped(pid)
        assert len(worker.rates["a job"]) == len(worker.load_before["a job"]) == 2
        # Counts are those of the last job alone.
        assert {**worker.said["a job"], "seconds": 0} == {
            "seconds": 0,
            "output_tokens": 9,
            "draft_tokens": 3,
            "accepted_tokens": 0,
        }
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _stopped(pid):
    for _ in range(1000):
        if _state(pid) == "T":
            return True
        os.sched_yield()
    return False


class Measured:
    def __init__(self, name, **rates):
        self.name, self.rates = name, rates
        self.said = {job: {"draft_tokens": 8 * (name != "off"), "accepted_tokens": 2} for job in rates}


def test_tables_compare_with_the_right_worker(program):
    turns = program("turns")
    job = turns.Job(name="a", prompts=[[1]], max_tokens=[1])
    shown = program("depth_cpu").depth_table(
        [Measured("depth 1, inline", a=[2.0, 4.0, 6.0]), Measured("depth 2, thread", a=[8.0])], [job]
    )
    assert shown.splitlines()[2:] == [
        "| a | depth 1, inline | 4.0 | 2.0 - 6.0 | 1.00 |",
        "| a | depth 2, thread | 8.0 | 8.0 - 8.0 | 2.00 |",
    ]
    shown = program("speculation").speculation_table([Measured("off", a=[4.0]), Measured("ngram:5", a=[6.0])], [job])
    assert shown.splitlines()[2:] == [
        "| a | off | 4.0 | 4.0 - 4.0 | 1.00 |  |",
        "| a | ngram:5 | 6.0 | 6.0 - 6.0 | 1.50 | 25% |",
    ]
    shown = program("peers").rates_table([Measured("isoinfer", a=[6.0]), Measured("other", a=[4.0])], [job])
    assert shown.splitlines()[3] == "| a | other | 4.0 | 4.0 - 4.0 | 1.50 |"

"""Order, bounds, error records and interrupts, with the deterministic engine."""

from __future__ import annotations

import gc
import json
import sys

import pytest

from isoinfer.batch.reader import Line
from isoinfer.batch.runner import BatchRunner, Limits
from isoinfer.batch.seen_ids import SeenIds
from isoinfer.batch.tally import Tally
from isoinfer.errors import DeviceLost


class _Sink:
    """Takes lines and keeps only their ids."""

    def __init__(self):
        self.ids = []

    @property
    def num_lines(self):
        return len(self.ids)

    def write(self, line):
        self.ids.append(json.loads(line)["custom_id"])


def _texts(records):
    return [r["response"]["body"]["choices"][0]["text"] if r["error"] is None else r["error"]["code"] for r in records]


def test_output_is_in_input_order_whatever_finishes_first(files, completion, make_engine):
    steps = [5, 1, 3, 1, 9, 2, 1]
    files.write(*(completion(str(i), f"p{n}") for i, n in enumerate(steps)))
    records = files.run(make_engine(), limits=Limits(max_in_flight=3, max_window=5))
    assert [r["custom_id"] for r in records] == [str(i) for i in range(len(steps))]
    assert _texts(records) == [f"P{n}" for n in steps]


def test_twenty_thousand_lines_in_the_memory_of_those_in_flight(completion, make_engine):
    """Lines come from a generator that watches how far it is read ahead, and what the interpreter holds meanwhile."""
    engine, sink, seen = make_engine(), _InOrder(), SeenIds()
    engine.prompts = engine.params = _Nothing()
    blocks, ahead = {}, 0

    def lines():
        nonlocal ahead
        for i in range(20_000):
            ahead = max(ahead, i - sink.num_lines)
            if i in (2_000, 19_999):
                gc.collect()
                blocks[i] = sys.getallocatedblocks()
            yield Line(number=i + 1, raw=completion(f"id-{i}", f"p{1 + i % 3}" + "x" * 50).encode())

    limits = Limits(max_in_flight=8, max_window=32)
    BatchRunner(engine, sink, seen, Tally(), limits=limits).run(lines())
    seen.close()
    assert sink.num_lines == 20_000
    assert engine.peak == 8
    assert ahead < 32
    # One object kept per line would be 18 000.
    assert blocks[19_999] - blocks[2_000] < 2_000


class _InOrder:
    """Takes `id-0`, `id-1`, ... and keeps nothing."""

    num_lines = 0

    def write(self, line):
        assert json.loads(line)["custom_id"] == f"id-{self.num_lines}"
        self.num_lines += 1


class _Nothing(list):
    """A list that forgets."""

    def append(self, item):
        pass


def test_a_slow_first_line_stops_the_reader_at_the_window(completion, make_engine):
    engine, sink, seen = make_engine(), _Sink(), SeenIds()
    read = []

    def lines():
        for i in range(200):
            read.append((i, engine.num_steps))
            yield Line(number=i + 1, raw=completion(str(i), "p100" if i == 0 else "q1").encode())

    BatchRunner(engine, sink, seen, Tally(), limits=Limits(max_in_flight=4, max_window=10)).run(lines())
    seen.close()
    assert max(i for i, step in read if step < 100) == 9
    assert sink.ids == [str(i) for i in range(200)]


def test_many_bad_lines_do_not_pile_up_either(make_engine):
    engine, sink, seen = make_engine(), _Sink(), SeenIds()
    ahead = []

    def lines():
        for i in range(500):
            ahead.append(i - sink.num_lines)
            yield Line(number=i + 1, raw=b"nonsense")

    BatchRunner(engine, sink, seen, Tally(), limits=Limits(max_in_flight=4, max_window=10)).run(lines())
    seen.close()
    assert (max(ahead), engine.num_steps) == (9, 0)
    assert len(sink.ids) == 500


def test_bad_lines_get_records_and_the_job_goes_on(files, completion, chat, make_engine):
    files.write(
        completion("a", "x"),
        "nonsense",
        "",
        completion("a", "again"),
        completion("b", "refused?"),
        chat("c", "refused?"),
        completion("d", "stumbles!"),
        completion("e", "y", temprature=3),
        '{"method": "POST"}',
        completion("f", "z"),
    )
    with files.job() as job:
        tally = job.run(make_engine())
    records = files.records()
    assert _texts(records) == [
        "X",
        "invalid_json_line",
        "duplicate_custom_id",
        "invalid_request",
        "invalid_request",
        "server_error",
        "unknown_parameter",
        "missing_required_parameter",
        "Z",
    ]
    assert [r["custom_id"] for r in records] == ["a", None, "a", "b", "c", "d", "e", None, "f"]
    assert records[5]["response"]["status_code"] == 500
    assert "line 1" in records[2]["error"]["message"]
    assert "Line 4" in records[2]["error"]["message"]
    assert (tally.lines, tally.failed, tally.total) == (9, 7, 9)
    assert (tally.prompt_tokens, tally.output_tokens) == (2, 2)


@pytest.mark.parametrize("prompts", [["ok5", "bad?"], ["bad?", "ok5"], ["ok5", "stumbles1!", "late7"]])
def test_one_bad_prompt_fails_its_line_and_leaves_nothing_running(files, completion, make_engine, prompts):
    engine = make_engine()
    files.write(completion("a", prompts), completion("b", "fine"))
    records = files.run(engine)
    assert [r["error"] is None for r in records] == [False, True]
    assert engine.num_unfinished == 0


def test_an_interrupt_leaves_the_finished_prefix_and_a_second_run_the_rest(files, completion, make_engine):
    files.write(*(completion(str(i), f"p{n}") for i, n in enumerate([1, 2, 3, 4, 1, 1])))
    with files.job() as job, pytest.raises(KeyboardInterrupt):
        job.run(make_engine(fail_at=3))
    assert [r["custom_id"] for r in files.records()] == ["0", "1"]
    engine = make_engine()
    assert [r["custom_id"] for r in files.run(engine)] == list("012345")
    assert engine.prompts == ["p3", "p4", "p1", "p1"]


def test_a_lost_device_writes_no_record_for_what_it_never_answered(files, completion, make_engine):
    files.write(completion("a", "p1"), completion("b", "p5"))
    with files.job() as job, pytest.raises(DeviceLost):
        job.run(make_engine(fail_at=2, error=DeviceLost))
    assert [r["custom_id"] for r in files.records()] == ["a"]


def test_an_interrupt_between_writing_and_counting_repeats_no_line(files, completion, make_engine, monkeypatch):
    from isoinfer.batch.writer import LineWriter

    write = LineWriter.write
    once = iter([True])

    def write_then_interrupt(self, line):
        write(self, line)
        if next(once, False):
            raise KeyboardInterrupt

    monkeypatch.setattr(LineWriter, "write", write_then_interrupt)
    files.write(*(completion(str(i), "p1") for i in range(4)))
    with files.job() as job, pytest.raises(KeyboardInterrupt):
        job.run(make_engine())
    ids = [r["custom_id"] for r in files.records()]
    assert ids == list("0123")


def test_template_variables_reach_the_engine(files, chat, make_engine):
    engine = make_engine()
    files.write(chat("a", "x", reasoning_effort="high"), chat("b", "x"))
    files.run(engine)
    assert engine.template_kwargs == [{"reasoning_effort": "high"}, None]


def test_priority_and_cache_salt_reach_the_engine(files, chat, completion, make_engine):
    engine = make_engine()
    files.write(chat("a", "x", priority=3), completion("b", "x", cache_salt="tenant"), completion("c", "x"))
    files.run(engine)
    assert list(engine.ranks) == [(3, None), (0, "tenant"), (0, None)]


def test_progress_is_told_after_each_step(files, completion, make_engine):
    files.write(*(completion(str(i), f"p{1 + i}") for i in range(3)))
    seen = []
    with files.job() as job:
        job.run(make_engine(), on_progress=lambda tally: seen.append((tally.lines, tally.total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]

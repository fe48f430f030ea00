"""The loop of add, step and abort over a runner that may fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isoinfer.engine.engine import Engine
from isoinfer.engine.messages import AbortRequest, CoreSampling
from isoinfer.errors import RequestError


def test_an_idle_engine_does_nothing(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    assert core.engine.step() == []
    assert core.runner.plans == []


def test_requests_come_and_go_while_it_runs(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    core.add("a", [1, 2], max_tokens=4)
    assert core.engine.num_unfinished == 1
    core.step()
    core.add("b", [3], max_tokens=2)
    core.run()
    assert core.engine.num_unfinished == 0
    for name, prompt, size in (("a", [1, 2], 4), ("b", [3], 2)):
        assert core.tokens(name) == fake.answer(prompt, CoreSampling(max_tokens=size, seed=0), 64)[0]
    assert len(core.runner.plans) == 4, "b joins the steps of a"


def test_a_refused_request_leaves_nothing(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    with pytest.raises(RequestError):
        core.add("a", [])
    assert core.engine.num_unfinished == 0
    assert core.engine.step() == []


def test_abort_gives_the_last_update_whether_waiting_or_running(fake: SimpleNamespace) -> None:
    core = fake.make_core(max_num_seqs=1)
    core.add("running", [1])
    core.add("waiting", [2])
    core.step()
    for name in ("waiting", "running"):
        (update,) = core.engine.abort(AbortRequest(request_id=name))
        assert (update.request_id, update.finish_reason, update.token_ids) == (name, "abort", ())
    assert core.engine.abort(AbortRequest(request_id="never")) == []
    core.assert_idle()


DEPTHS = [{"depth": 1}, {"depth": 2}, {"depth": 2, "num_drafts": 2}]


@pytest.mark.parametrize("fail_at", [[1], [1, 2, 3], [2]])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_failing_step_never_stops_the_engine(fake: SimpleNamespace, fail_at: list[int], depth: int) -> None:
    core = fake.make_core(fail_at=fail_at, depth=depth)
    for turn in range(4):
        core.add(f"r{turn}", [turn, 7], max_tokens=1)
        core.run()
    reasons = [core.reason(f"r{turn}") for turn in range(4)]
    assert reasons == ["error" if turn + 1 in fail_at else "length" for turn in range(4)]
    core.assert_idle()


@pytest.mark.parametrize("depth", [1, 2])
def test_what_is_no_step_error_is_not_swallowed(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    core = fake.make_core(depth=depth)
    core.add("a", [1])
    monkeypatch.setattr(core.runner, "settle", lambda handle: 1 / 0)
    for _ in range(depth - 1):
        core.step()
    with pytest.raises(ZeroDivisionError):
        core.step()
    assert core.runner.num_abandoned == 1


@pytest.mark.parametrize("name", ["submit", "sample", "settle"])
@pytest.mark.parametrize("settings", DEPTHS, ids=str)
def test_a_step_that_is_interrupted_has_not_happened(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, settings: dict[str, int], name: str
) -> None:
    core = fake.make_core(max_num_batched_tokens=4, **settings)
    for index in range(3):
        core.add(f"r{index}", [index, 5, 6], max_tokens=5, num_prompt_logprobs=0)
    for _ in range(3):
        core.step()
        with monkeypatch.context() as patch:
            patch.setattr(core.runner, name, lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                core.step()
    core.run()
    for index in range(3):
        expected = fake.answer([index, 5, 6], CoreSampling(max_tokens=5, seed=0), 64)[0]
        assert (core.tokens(f"r{index}"), core.reason(f"r{index}")) == (expected, "length")
    core.assert_idle()


def calls_of(core: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the runner is asked from now on: `submit 3`, `sample 3`, `settle 3`."""
    calls: list[str] = []

    def spy(name: str) -> None:
        original = getattr(core.runner, name)

        def call(first: Any, *more: Any) -> Any:
            calls.append(f"{name} {(first if name == 'submit' else first.plan).step_id}")
            return original(first, *more)

        monkeypatch.setattr(core.runner, name, call)

    for name in ("submit", "sample", "settle"):
        spy(name)
    return calls


def test_at_depth_1_a_step_settles_before_the_next_is_scheduled(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = fake.make_core()
    core.add("a", [1], max_tokens=2)
    calls = calls_of(core, monkeypatch)
    core.run()
    assert calls == ["submit 1", "sample 1", "settle 1", "submit 2", "sample 2", "settle 2"]


def test_at_depth_2_the_forward_runs_before_the_step_before_it_settles(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sampling comes after: it needs the tokens of the step before, for penalties, bans and masks."""
    core = fake.make_core(depth=2)
    core.add("a", [1], max_tokens=3)
    calls = calls_of(core, monkeypatch)
    assert core.step() == []
    assert not core.engine.is_idle
    core.run()
    first, second = ["submit 1", "sample 1"], ["submit 2", "settle 1", "sample 2"]
    assert calls == [*first, *second, "submit 3", "settle 2", "sample 3", "settle 3"]
    assert core.engine.is_idle


def test_the_engine_is_idle_only_when_nothing_is_in_flight(fake: SimpleNamespace) -> None:
    core = fake.make_core(depth=2)
    core.add("a", [1])
    core.step()
    core.engine.abort(AbortRequest(request_id="a"))
    assert (core.engine.num_unfinished, core.engine.is_idle) == (0, False)
    assert core.engine.step() == []
    assert core.engine.is_idle


@pytest.mark.parametrize("depth", [1, 2])
def test_what_had_settled_before_an_interrupt_comes_with_the_next_step(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    core = fake.make_core(depth=depth)
    core.add("a", [1, 2], max_tokens=3)
    core.step()
    original = core.runner.sample
    with monkeypatch.context() as patch:
        patch.setattr(core.runner, "sample", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            core.step()
    assert core.runner.sample == original
    core.run()
    assert core.tokens("a") == fake.answer([1, 2], CoreSampling(max_tokens=3, seed=0), 64)[0]


def test_other_depths_than_one_and_two_are_programmer_errors(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    with pytest.raises(AssertionError):
        Engine(core.scheduler, core.runner, depth=3)


def test_invariants_are_asserted_in_every_step_where_that_is_asked(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, checks = fake.make_core(), []
    monkeypatch.setattr(core.scheduler, "check", lambda: checks.append(1))
    core.add("a", [1], max_tokens=3)
    core.run()
    assert len(checks) == 3
    silent = Engine(core.scheduler, core.runner)
    silent.step()
    assert len(checks) == 3


def test_close_reaches_the_runner(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    core.engine.close()
    assert core.runner.closed

"""The loop of add, step and abort over a runner that may fail."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

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


@pytest.mark.parametrize("fail_at", [[1], [1, 2, 3], [2]])
def test_a_failing_step_never_stops_the_engine(fake: SimpleNamespace, fail_at: list[int]) -> None:
    core = fake.make_core(fail_at=fail_at)
    for turn in range(4):
        core.add(f"r{turn}", [turn, 7], max_tokens=1)
        core.run()
    reasons = [core.reason(f"r{turn}") for turn in range(4)]
    assert reasons == ["error" if turn + 1 in fail_at else "length" for turn in range(4)]
    core.assert_idle()


def test_what_is_no_step_error_is_not_swallowed(fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    core = fake.make_core()
    core.add("a", [1])
    monkeypatch.setattr(core.runner, "settle", lambda handle: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        core.step()
    assert core.runner.num_abandoned == 1


@pytest.mark.parametrize("name", ["submit", "sample", "settle"])
def test_a_step_that_is_interrupted_has_not_happened(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    core = fake.make_core(max_num_batched_tokens=4)
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


def test_close_reaches_the_runner(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    core.engine.close()
    assert core.runner.closed

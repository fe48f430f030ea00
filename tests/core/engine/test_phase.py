"""The kind of each step: alone, and in a group of replicas that exchange votes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.engine.phase import Mixed, Phase, Situation, TwoPhase


def situation(*, prefill: bool = False, decode: bool = False, usage: float = 0.0) -> Situation:
    return Situation(can_prefill=prefill, can_decode=decode, kv_usage=usage)


BOTH, PREFILL, DECODE, IDLE = (
    situation(prefill=True, decode=True),
    situation(prefill=True),
    situation(decode=True),
    situation(),
)


class Group:
    """Replicas in threads. `gather` brings the votes of one round together, as a collective would."""

    def __init__(self, size: int, *, all_interval: int, any_interval: int) -> None:
        self._size, self._barrier, self._votes = size, Barrier(size, timeout=10), [False] * size
        self._rules = [
            TwoPhase(self._gather_of(rank), all_interval=all_interval, any_interval=any_interval)
            for rank in range(size)
        ]
        self.num_gathers = [0] * size

    def _gather_of(self, rank: int) -> Callable[[bool], Sequence[bool]]:
        def gather(vote: bool) -> Sequence[bool]:
            self.num_gathers[rank] += 1
            self._votes[rank] = vote
            self._barrier.wait()
            votes = tuple(self._votes)
            self._barrier.wait()
            return votes

        return gather

    def run(self, steps: Sequence[Sequence[Situation]]) -> list[Phase]:
        """The kind of each step, checked to be the same on all. `steps`: what each replica knows before each step."""

        def replica(rank: int) -> list[Phase]:
            return [self._rules[rank].choose(lambda step=step: step[rank]) for step in steps]

        with ThreadPoolExecutor(self._size) as pool:
            chosen = list(pool.map(replica, range(self._size)))
        assert all(phases == chosen[0] for phases in chosen), "replicas disagree"
        assert len(set(self.num_gathers)) == 1, "a replica waits for votes that never come"
        return chosen[0]


def lone(steps: Sequence[Situation]) -> list[Phase]:
    rule = TwoPhase()
    return [rule.choose(lambda step=step: step) for step in steps]


def test_mixed_asks_nothing() -> None:
    assert Mixed().choose(lambda: pytest.fail("it needs to know nothing")) == "mixed"


def test_a_lone_engine_prefills_at_once_and_decodes_in_between() -> None:
    assert lone([BOTH] * 5) == ["decode", "prefill", "decode", "prefill", "decode"]
    assert lone([DECODE, DECODE, BOTH, BOTH]) == ["decode", "decode", "prefill", "decode"]
    assert lone([PREFILL] * 3) == ["prefill"] * 3, "nobody decodes, nobody waits"
    assert lone([IDLE]) == ["decode"]


def test_a_lone_engine_prefills_whatever_its_kv_holds() -> None:
    assert lone([situation(prefill=True, usage=1.0)]) == ["prefill"]


def test_a_group_starts_at_once_when_nobody_decodes() -> None:
    group = Group(3, all_interval=7, any_interval=10)
    assert group.run([[IDLE, PREFILL, IDLE]] * 2) == ["prefill"] * 2
    assert group.run([[IDLE, IDLE, IDLE]]) == ["decode"]


def test_a_group_prefills_together_at_the_all_points() -> None:
    group = Group(2, all_interval=3, any_interval=100)
    steps = [[DECODE, DECODE], *[[BOTH, BOTH]] * 6]
    assert group.run(steps) == ["decode", "decode", "decode", "prefill", "prefill", "prefill", "prefill"]


def test_a_group_prefills_for_one_at_the_any_points_only() -> None:
    group = Group(2, all_interval=3, any_interval=5)
    steps = [[DECODE, BOTH]] * 12
    decodes: list[Phase] = ["decode"] * 5
    assert group.run(steps) == [*decodes, "prefill", *decodes, "prefill"]


def test_one_full_replica_puts_off_the_prefills_of_all_but_not_for_ever() -> None:
    full = situation(prefill=True, decode=True, usage=0.95)
    group = Group(2, all_interval=2, any_interval=5)
    assert group.run([[BOTH, full]] * 6) == ["decode"] * 5 + ["prefill"]


def test_a_full_group_of_which_nobody_decodes_goes_on_with_its_prompts() -> None:
    full = situation(prefill=True, usage=0.95)
    assert Group(2, all_interval=7, any_interval=10).run([[full, IDLE]] * 2) == ["prefill"] * 2


situations = st.builds(situation, prefill=st.booleans(), decode=st.booleans(), usage=st.sampled_from([0.0, 0.9, 0.91]))


@settings(max_examples=40, deadline=None)
@given(size=st.integers(2, 4), all_interval=st.integers(1, 4), any_interval=st.integers(1, 6), data=st.data())
def test_a_group_agrees_and_keeps_its_intervals(
    size: int, all_interval: int, any_interval: int, data: st.DataObject
) -> None:
    step = st.lists(situations, min_size=size, max_size=size)
    steps = data.draw(st.lists(step, max_size=20))
    phases = Group(size, all_interval=all_interval, any_interval=any_interval).run(steps)
    decodes = 0
    for known, phase in zip(steps, phases, strict=True):
        willing = [one.can_prefill and one.kv_usage <= 0.9 for one in known]
        is_any_point = decodes > 0 and decodes % any_interval == 0
        is_all_point = decodes % all_interval == 0
        if not any(one.can_decode for one in known):
            assert phase == ("prefill" if any(one.can_prefill for one in known) else "decode"), "no step is lost"
        elif phase == "prefill":
            assert (is_any_point and any(one.can_prefill for one in known)) or (is_all_point and all(willing))
        else:
            assert not (is_all_point and all(willing))
            assert not (is_any_point and any(one.can_prefill for one in known))
        decodes = 0 if phase == "prefill" else decodes + 1

"""The state machine: two engines, at depth 1 and at depth 2, get the same requests, aborts and interrupts.

Nothing is faked but the device: its tokens are a hash of the true history, so that any mix-up of block, slot, row,
position or setting changes them or is refused, and its queue runs late. Each request must say what it says alone
(`Oracle`), whatever happens around it, and nothing may be left when nobody is there any more.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from .load import EOS, JOBS, SETUPS, Job, Setup, model_spec, one_of
from .oracle import Oracle
from .play import Play, Truth

DEPTHS = (1, 2)


@cache
def oracle_for(windows: tuple[int | None, ...], model: tuple[tuple[str, int], ...]) -> Oracle:
    return Oracle(model_spec(windows), eos_token=EOS, **dict(model))


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, aborts and interrupts at any moment. `tally` counts what happened, over all examples."""

    tally: Counter[str]

    @initialize(setup=SETUPS)
    def start(self, setup: Setup) -> None:
        self.setup = setup
        self.oracle = oracle_for(setup.windows, setup.model)
        self.plays = [Play(setup, depth) for depth in DEPTHS]
        self.names: list[str] = []

    @rule(jobs=st.lists(JOBS, min_size=1, max_size=4))
    def arrive(self, jobs: list[Job]) -> None:
        """Names come again as soon as they are free."""
        for job in jobs:
            truth = Truth(self.oracle, job, self.setup.max_len)
            free = [name for name in self.names if all(name not in play.streams for play in self.plays)]
            if not free:
                free.append(f"request-{len(self.names)}")
                self.names += free
            for play in self.plays:
                play.add(free[0], truth)

    @precondition(lambda self: self.is_busy)
    @rule(rounds=one_of(1, 2, 3, 8, 20))
    def run(self, rounds: int) -> None:
        for play in self.plays:
            for _ in range(rounds):
                play.step()

    @precondition(lambda self: self.is_busy)
    @rule(which=st.integers(0, 9))
    def abort(self, which: int) -> None:
        for play in self.plays:
            play.abort(self.names[which % len(self.names)])

    @precondition(lambda self: self.is_busy)
    @rule(where=one_of("submit", "sample", "settle"), after=st.booleans())
    def interrupt(self, where: str, after: bool) -> None:
        for play in self.plays:
            self.tally["interrupts"] += play.interrupt(where, after=after)

    @precondition(lambda self: self.is_busy)
    @rule()
    def drain(self) -> None:
        for play in self.plays:
            play.drain()

    @property
    def is_busy(self) -> bool:
        return not all(play.engine.is_idle for play in self.plays)

    def teardown(self) -> None:
        if not hasattr(self, "plays") or sys.exc_info()[0] is not None:
            return
        self.drain()
        for play in self.plays:
            play.check_wasted()
            self.tally += Counter(play.tally())

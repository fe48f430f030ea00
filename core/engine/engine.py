"""The core: takes messages, runs steps, gives updates. With depth 2 the host works one step ahead of the device.

    schedule N -> submit forward N -> settle N - 1 -> sample N -> (depth 1: settle N)

Engine.step -> Scheduler.schedule -> StepPlan -> Runner.submit / sample / settle -> Scheduler.settle
"""

from __future__ import annotations

from dataclasses import asdict

from isoinfer.engine.messages import AbortRequest, AddRequest, TokenUpdate
from isoinfer.engine.plan import StepPlan
from isoinfer.engine.runner import Runner, StepHandle
from isoinfer.engine.scheduler import Scheduler
from isoinfer.errors import StepError
from isoinfer.stats import EngineStats

DEPTHS = (1, 2)


class Engine:
    """One scheduler and one runner. Not thread-safe: one thread calls it.

    `depth`: steps in flight at once. 1 is the synchronous engine: the same code, each step settled before the
    next is scheduled. `check_invariants`: assert the scheduler's invariants in every step.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, *, depth: int = 1, check_invariants: bool = False) -> None:
        assert depth in DEPTHS, depth
        self.scheduler = scheduler
        self._runner, self._depth, self._check = runner, depth, check_invariants
        self._in_flight: list[tuple[StepPlan, StepHandle]] = []
        self._updates: list[TokenUpdate] = []

    def stats(self) -> EngineStats:
        """Counts since start."""
        scheduled, cached = self.scheduler.stats, self.scheduler.kv_stats
        return EngineStats(
            **asdict(scheduled),
            prefix_cache_queries=cached.queries,
            prefix_cache_hits=cached.hits,
            prefix_cache_evictions=cached.evictions,
            host_length_waits=self._runner.num_host_length_waits,
        )

    def add(self, message: AddRequest) -> None:
        """Queue a request. RequestError if it can never be served; nothing is queued then."""
        self.scheduler.add(message)

    def abort(self, message: AbortRequest) -> list[TokenUpdate]:
        """End a request: its last update, after those that an interrupted step has left. Unknown ids give none."""
        request_id = message.request_id
        if not self.scheduler.abort(request_id):
            return []
        left = [update for update in self._updates if update.request_id == request_id]
        self._updates = [update for update in self._updates if update.request_id != request_id]
        return [*left, TokenUpdate(request_id=request_id, finish_reason="abort")]

    @property
    def num_unfinished(self) -> int:
        """Requests waiting or running."""
        return self.scheduler.num_unfinished

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, runs or is in flight."""
        return not self._in_flight and not self.num_unfinished

    def step(self) -> list[TokenUpdate]:
        """Submit one step, and take in the one before it (depth 2) or itself (depth 1).

        A step that fails ends its own requests with an error; the engine goes on. After any other exception,
        such as an interrupt, what was in flight has not happened and the engine still works; what had settled
        before comes with the next step.
        """
        try:
            self._step()
        except BaseException:
            self._in_flight.clear()
            self._runner.abandon()
            self.scheduler.forget()
            raise
        if self._check:
            self.scheduler.check()
        updates, self._updates = self._updates, []
        return updates

    def close(self) -> None:
        """Release the runner's device resources."""
        self._in_flight.clear()
        self._runner.close()

    def _step(self) -> None:
        plan = self.scheduler.schedule()
        handle = None if plan is None else self._runner.submit(plan)
        self._settle()
        if plan is None or handle is None:
            return
        self._runner.sample(handle, self.scheduler.sample_plan(plan))
        self._in_flight.append((plan, handle))
        if self._depth == 1:
            self._settle()

    def _settle(self) -> None:
        """Take in every step in flight, oldest first."""
        while self._in_flight:
            plan, handle = self._in_flight.pop(0)
            try:
                result = self._runner.settle(handle)
            except StepError as error:
                self._updates += self.scheduler.fail(plan, str(error))
            else:
                self._updates += self.scheduler.settle(plan, result)

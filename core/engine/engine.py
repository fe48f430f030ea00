"""The core: takes messages, runs steps, gives updates. At depth 1 each step settles before the next.

Engine.step -> Scheduler.schedule -> StepPlan -> Runner.submit / sample / settle -> Scheduler.settle
"""

from __future__ import annotations

from isoinfer.engine.messages import AbortRequest, AddRequest, TokenUpdate
from isoinfer.engine.plan import StepPlan, StepResult
from isoinfer.engine.runner import Runner
from isoinfer.engine.scheduler import Scheduler
from isoinfer.errors import StepError


class Engine:
    """One scheduler and one runner. Not thread-safe: one thread calls it."""

    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self.scheduler = scheduler
        self._runner = runner

    def add(self, message: AddRequest) -> None:
        """Queue a request. RequestError if it can never be served; nothing is queued then."""
        self.scheduler.add(message)

    def abort(self, message: AbortRequest) -> list[TokenUpdate]:
        """End a request; its last update. Unknown ids give none."""
        known = self.scheduler.abort(message.request_id)
        return [TokenUpdate(request_id=message.request_id, finish_reason="abort")] if known else []

    @property
    def num_unfinished(self) -> int:
        """Requests waiting or running."""
        return self.scheduler.num_unfinished

    def step(self) -> list[TokenUpdate]:
        """Compute one step. A step that fails ends its own requests with an error; the engine goes on.

        After any other exception, such as an interrupt, the step has not happened and the engine still works.
        """
        plan = self.scheduler.schedule()
        if plan is None:
            return []
        try:
            result = self._run(plan)
        except StepError as error:
            return self.scheduler.fail(plan, str(error))
        except BaseException:
            self._runner.abandon()
            self.scheduler.forget(plan)
            raise
        return self.scheduler.settle(plan, result)

    def close(self) -> None:
        """Release the runner's device resources."""
        self._runner.close()

    def _run(self, plan: StepPlan) -> StepResult:
        handle = self._runner.submit(plan)
        self._runner.sample(handle, self.scheduler.sample_plan(plan))
        return self._runner.settle(handle)

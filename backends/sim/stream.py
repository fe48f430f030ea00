"""Queues of the simulated device. Work runs only when somebody waits for it, so that what the core changes too
early, or reads too late, is seen: copies to the device read the host's buffer then, copies to the host land
then, and launched functions see their host arguments as they are then.

The order is that of the contract: in order in a stream, across streams only where one waits for an event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isoinfer.backends.interface import Event, Stream
from isoinfer.errors import DeviceLost, StepError

if TYPE_CHECKING:
    from isoinfer.backends.sim.device import SimDevice


class Mark:
    """A point that a stream reaches: when, on the device's clock, and what failed on the way to it."""

    __slots__ = ("done", "error", "moment", "polls", "rounds", "stream")

    def __init__(self, stream: SimStream, polls: int) -> None:
        self.stream = stream
        self.polls = polls
        self.done = False
        self.moment = 0.0
        self.rounds = 0
        self.error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """A launched function and the host's time of its launch."""

    launched: float
    fn: Callable[..., None]
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """A mark of this stream."""

    mark: Mark


@dataclass(frozen=True, slots=True)
class Await:
    """A mark of another stream, which comes first."""

    mark: Mark


class SimStream:
    """One queue. `free_at`: the device's time when all that ran is done."""

    def __init__(self, device: SimDevice) -> None:
        self._device = device
        self._queue: deque[Work | Reach | Await] = deque()
        self._error: BaseException | None = None
        self.free_at = 0.0

    def launch(self, fn: Callable[..., None], *args: Any) -> None:
        """Enqueue."""
        self._enqueue(Work(self._device.clock.now(), fn, args))

    def wait(self, event: Event) -> None:
        """Let later work of this stream come after the event as it is recorded now."""
        mark = own_event(event).mark
        if mark is not None and mark.stream is not self:
            self._enqueue(Await(mark))

    def synchronize(self) -> None:
        """Run everything and wait for it."""
        self._device.run(self, None)
        self._device.clock.wait_until(self.free_at)

    def mark_end(self) -> Mark:
        """A mark behind what is enqueued."""
        mark = Mark(self, self._device.polls_of_next_event())
        self._enqueue(Reach(mark))
        return mark

    def _enqueue(self, item: Work | Reach | Await) -> None:
        self._queue.append(item)
        self._device.run_early(self, len(self._queue))

    # called by the device

    def run_until(self, mark: Mark | None, at_most: int = -1) -> None:
        """Run items up to `mark`, all if it is None, or `at_most` so many."""
        while self._queue and at_most and not (mark is not None and mark.done):
            item = self._queue.popleft()
            at_most -= 1
            if isinstance(item, Work):
                self._run(item)
            elif isinstance(item, Reach):
                self._reach(item.mark)
            else:
                item.mark.stream.run_until(item.mark)
                self.free_at = max(self.free_at, item.mark.moment)

    def _run(self, work: Work) -> None:
        if self._error is not None:  # what depends on a failure is skipped up to the next event
            return
        try:
            work.fn(*work.args)
        except Exception as error:
            self._error = error
        start = max(self.free_at, work.launched)
        self.free_at = start + self._device.take_spent(start)

    def _reach(self, mark: Mark) -> None:
        mark.done, mark.moment, mark.rounds = True, self.free_at, self._device.num_rounds
        mark.error, self._error = self._error, None


class SimEvent:
    """A point in a stream. Unrecorded events count as done."""

    def __init__(self, device: SimDevice) -> None:
        self._device = device
        self.mark: Mark | None = None

    def record(self, stream: Stream) -> None:
        """Mark the stream's current end."""
        assert isinstance(stream, SimStream), type(stream)
        self.mark = stream.mark_end()

    def query(self) -> bool:
        """Whether all work before the mark is done, on the device's clock. It may say no for a while."""
        mark = self.mark
        if mark is None:
            return True
        if mark.polls:
            mark.polls -= 1
            return False
        self._device.run(mark.stream, mark)
        return self._device.clock.now() >= mark.moment

    def synchronize(self) -> None:
        """Run what comes before the mark, wait for it, and raise what failed on the way to it."""
        if self.mark is None:
            return
        self._device.wait_for(self.mark)
        if isinstance(error := self.mark.error, DeviceLost):
            raise DeviceLost(str(error)) from error
        if error is not None:
            raise StepError(f"{type(error).__name__}: {error}") from error


def own_event(event: Event) -> SimEvent:
    """The event as this backend made it; another backend's is a programmer error."""
    assert isinstance(event, SimEvent), type(event)
    return event

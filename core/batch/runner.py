"""Answers request lines with an engine, in input order, holding only what is in flight.

Lines are read only while there is room: at most `max_in_flight` prompts in the engine, and at most
`max_window` lines between the oldest unfinished one and the newest read, so that one slow line makes
the reader wait instead of letting finished answers pile up behind it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from isoinfer.batch.engine import BatchEngine
from isoinfer.batch.line_error import LineError
from isoinfer.batch.reader import Envelope, Line, open_line
from isoinfer.batch.records import answer_record, error_record
from isoinfer.batch.request import ChatRequest, LineRequest, parse_request
from isoinfer.batch.response import response_body, usage
from isoinfer.batch.seen_ids import SeenIds
from isoinfer.batch.tally import Tally
from isoinfer.batch.writer import LineWriter
from isoinfer.errors import TemplateError, UserError
from isoinfer.outputs import RequestOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may be in flight: prompts in the engine, and lines read but not yet written."""

    max_in_flight: int = 512
    max_window: int = 4096


@dataclass(slots=True, kw_only=True)
class _Pending:
    """A line that was read and is not yet written, the `order`-th of this run. Once `record` is set, the request
    and its outputs are dropped.
    """

    order: int
    name: str
    number: int
    custom_id: str | None
    request: LineRequest | None = None
    outputs: list[RequestOutput | None] = field(default_factory=list)
    num_missing: int = 0
    failed: bool = False
    record: bytes | None = None


class BatchRunner:
    """One run over a stream of lines. Takes the engine, the writer and the ids seen so far; owns none of them."""

    def __init__(
        self,
        engine: BatchEngine,
        writer: LineWriter,
        seen: SeenIds,
        tally: Tally,
        *,
        settings: str = "",
        limits: Limits | None = None,
        on_progress: Callable[[Tally], None] = lambda tally: None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._seen = seen
        self._tally = tally
        self._settings = settings
        self._limits = limits or Limits()
        self._on_progress = on_progress
        self._clock = clock
        self._now = now
        self._num_admitted = 0
        self._window: deque[_Pending] = deque()
        self._requests: dict[str, tuple[_Pending, int]] = {}

    def run(self, lines: Iterator[Line]) -> None:
        """Answer every line. Whatever ends it early (an interrupt, a lost device), finished lines are written first."""
        started = self._clock()
        try:
            self._loop(lines, started)
        finally:
            self._flush()
            self._tally.seconds = self._clock() - started

    def _loop(self, lines: Iterator[Line], started: float) -> None:
        more = True
        while more or self._window:
            more = more and self._fill(lines)
            if self._requests:
                self._step()
            self._flush()
            self._tally.seconds = self._clock() - started
            self._on_progress(self._tally)

    def _fill(self, lines: Iterator[Line]) -> bool:
        """Read lines while there is room. False when there are no more."""
        limits = self._limits
        while len(self._requests) < limits.max_in_flight and len(self._window) < limits.max_window:
            line = next(lines, None)
            if line is None:
                return False
            self._admit(open_line(line, self._settings))
        return True

    def _admit(self, envelope: Envelope) -> None:
        pending = _Pending(
            order=self._num_admitted, name=envelope.name, number=envelope.number, custom_id=envelope.custom_id
        )
        self._window.append(pending)
        self._num_admitted += 1
        try:
            self._refuse_duplicate(envelope)
            pending.request = parse_request(envelope)
            pending.num_missing = pending.request.num_prompts
            pending.outputs = [None] * pending.num_missing
            self._submit(pending, pending.request)
        except LineError as error:
            self._fail(pending, error)

    def _refuse_duplicate(self, envelope: Envelope) -> None:
        if envelope.custom_id is None:
            return
        first = self._seen.add(envelope.custom_id, envelope.number)
        if first is not None:
            raise LineError(
                "duplicate_custom_id",
                f"Line {envelope.number}: the custom_id {envelope.custom_id!r:.80} was used on line {first}. "
                "Give each line its own.",
                status=None,
            )

    def _submit(self, pending: _Pending, request: LineRequest) -> None:
        try:
            for index in range(request.num_prompts):
                self._submit_one(_name(pending, index), request, index)
                self._requests[_name(pending, index)] = (pending, index)
        except UserError as error:
            code = "invalid_messages" if isinstance(error, TemplateError) else "invalid_request"
            raise LineError(code, str(error)) from error

    def _submit_one(self, request_id: str, request: LineRequest, index: int) -> None:
        rank, engine = request.rank, self._engine
        if isinstance(request, ChatRequest):
            engine.submit_chat(
                request_id,
                request.messages,
                request.params,
                chat_template_kwargs=request.template_kwargs or None,
                priority=rank.priority,
                cache_salt=rank.cache_salt,
            )
        else:
            prompt = request.prompts[index]
            engine.submit(request_id, prompt, request.params, priority=rank.priority, cache_salt=rank.cache_salt)

    def _fail(self, pending: _Pending, error: LineError) -> None:
        """Give the line an error record and take its other prompts out of the engine."""
        for index in range(len(pending.outputs)):
            request_id = _name(pending, index)
            if self._requests.pop(request_id, None) is not None:
                self._engine.abort(request_id)
        pending.record = error_record(pending.name, pending.custom_id, error)
        pending.failed = True
        pending.request, pending.outputs = None, []

    def _step(self) -> None:
        outputs = self._engine.step()
        for output in outputs:
            if output.finished and output.request_id in self._requests:
                self._take(output, *self._requests.pop(output.request_id))
        assert outputs or self._engine.num_unfinished or not self._requests, (
            f"the engine has nothing to do, but {len(self._requests)} requests are unanswered"
        )

    def _take(self, output: RequestOutput, pending: _Pending, index: int) -> None:
        if output.error is not None:
            self._fail(pending, LineError("server_error", output.error, status=500))
            return
        pending.outputs[index] = output
        pending.num_missing -= 1
        if pending.num_missing == 0:
            self._answer(pending)

    def _answer(self, pending: _Pending) -> None:
        request, outputs = pending.request, [output for output in pending.outputs if output is not None]
        assert request is not None
        body = response_body(
            request,
            outputs,
            name=pending.name,
            created=int(self._now()),
            model_name=self._engine.model_name,
            decoder=self._engine.tokenizer,
        )
        counts = usage(request, outputs)
        self._tally.prompt_tokens += counts["prompt_tokens"]
        self._tally.output_tokens += counts["completion_tokens"]
        pending.record = answer_record(pending.name, pending.custom_id, body)
        pending.request, pending.outputs = None, []

    def _flush(self) -> None:
        """Write the finished lines at the front of the window.

        An interrupt may come between writing and removing; the order tells on the next call that the line is out.
        """
        while self._window and (done := self._window[0]).record is not None:
            if done.order == self._writer.num_lines:
                self._writer.write(done.record)
            self._window.popleft()
            self._tally.written += 1
            self._tally.failed += done.failed


def _name(pending: _Pending, index: int) -> str:
    """The engine's name for one prompt of a line."""
    return f"{pending.number}-{index}"

"""Runs many prompts through an engine and gives the answers in their order, each as soon as it is its turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from isoinfer.batch.engine import BatchEngine
from isoinfer.errors import UserError
from isoinfer.outputs import RequestOutput
from isoinfer.sampling_params import SamplingParams


@dataclass(slots=True, kw_only=True)
class Answer:
    """One prompt's end: the finished output, or the error that kept it from one."""

    index: int
    prompt: str
    output: RequestOutput | None = None
    error: str | None = None

    @property
    def finished(self) -> bool:
        return self.output is not None or self.error is not None


def answer_in_order(
    engine: BatchEngine,
    prompts: Iterable[str],
    params: SamplingParams,
    *,
    max_in_flight: int,
    on_finished: Callable[[Answer], None] = lambda answer: None,
) -> Iterator[Answer]:
    """Every prompt's answer in order; a bad prompt gives an error and the others go on."""
    source = enumerate(prompts)
    window: deque[Answer] = deque()
    running: dict[str, Answer] = {}
    more = True
    while more or window:
        while more and len(running) < max_in_flight:
            item = next(source, None)
            if item is None:
                more = False
            else:
                window.append(_submit(engine, *item, params, running, on_finished))
        if running:
            _step(engine, running, on_finished)
        while window and window[0].finished:
            yield window.popleft()


def _submit(
    engine: BatchEngine,
    index: int,
    prompt: str,
    params: SamplingParams,
    running: dict[str, Answer],
    on_finished: Callable[[Answer], None],
) -> Answer:
    answer = Answer(index=index, prompt=prompt)
    try:
        engine.submit(str(index), prompt, params)
        running[str(index)] = answer
    except UserError as error:
        answer.error = str(error)
        on_finished(answer)
    return answer


def _step(engine: BatchEngine, running: dict[str, Answer], on_finished: Callable[[Answer], None]) -> None:
    outputs = engine.step()
    for output in outputs:
        if output.finished and output.request_id in running:
            answer = running.pop(output.request_id)
            answer.output, answer.error = output, output.error
            on_finished(answer)
    assert outputs or engine.num_unfinished or not running, f"the engine forgot {len(running)} requests"

"""Answers come in order, each as soon as it may, with a bounded number in flight."""

from __future__ import annotations

from isoinfer.cli.in_order import answer_in_order
from isoinfer.errors import RequestError
from isoinfer.outputs import RequestMetrics, RequestOutput
from isoinfer.sampling_params import SamplingParams


class _Engine:
    """Prompt "3" takes 3 steps; "?" is refused."""

    def __init__(self):
        self.left, self.peak = {}, 0

    @property
    def num_unfinished(self):
        return len(self.left)

    def submit(self, request_id, prompt, params):
        if prompt == "?":
            raise RequestError("no")
        self.left[request_id] = int(prompt)
        self.peak = max(self.peak, len(self.left))

    def step(self):
        self.left = {name: left - 1 for name, left in self.left.items()}
        outputs = [_output(name, left == 0) for name, left in self.left.items()]
        self.left = {name: left for name, left in self.left.items() if left}
        return outputs


def _output(name, finished):
    metrics = RequestMetrics(arrival=0.0)
    return RequestOutput(
        request_id=name, prompt=None, prompt_token_ids=(), outputs=[], metrics=metrics, finished=finished
    )


def _answers(prompts, **options):
    engine, finished = _Engine(), []
    answers = answer_in_order(
        engine, prompts, SamplingParams(), on_finished=lambda answer: finished.append(answer.index), **options
    )
    return engine, list(answers), finished


def test_in_order_with_errors_in_place():
    engine, answers, finished = _answers(["5", "1", "?", "2"], max_in_flight=8)
    assert [answer.index for answer in answers] == [0, 1, 2, 3]
    assert [answer.error for answer in answers] == [None, None, "no", None]
    assert finished == [2, 1, 3, 0]
    assert engine.peak == 3


def test_no_more_in_flight_than_allowed():
    engine, answers, _ = _answers(["2"] * 20, max_in_flight=3)
    assert len(answers) == 20
    assert engine.peak == 3


def test_the_first_answer_does_not_wait_for_the_last():
    engine = _Engine()
    answers = answer_in_order(engine, ["1", "9"], SamplingParams(), max_in_flight=2)
    assert next(answers).prompt == "1"
    assert engine.num_unfinished == 1

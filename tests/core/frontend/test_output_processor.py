from __future__ import annotations

import itertools

import pytest

from isoinfer.engine.messages import AbortRequest, TokenUpdate
from isoinfer.errors import RequestError
from isoinfer.frontend.input_processor import InputProcessor
from isoinfer.frontend.output_processor import OutputProcessor
from isoinfer.sampling_params import SamplingParams


@pytest.fixture
def processor(byte_level) -> OutputProcessor:
    return OutputProcessor(byte_level, clock=itertools.count(10.0).__next__)


@pytest.fixture
def add(processor, byte_level):
    """Adds a request to the processor; gives its children's ids."""
    inputs = InputProcessor(byte_level, vocab_size=420, max_model_len=100)

    def _add(request_id: str, *, stream: bool = True, arrival: float | None = None, **params) -> list[str]:
        parsed = SamplingParams(**params)
        children = inputs.process(request_id, "hi", parsed)
        processor.add(request_id, "hi", parsed, children, stream=stream, arrival=arrival)
        return [child.request_id for child in children]

    return _add


def update(tokenizer, request_id: str, text: str = "", **fields) -> TokenUpdate:
    return TokenUpdate(request_id=request_id, token_ids=tuple(tokenizer.encode(text, False)), **fields)


def test_a_request_streams_and_ends(processor, add, byte_level):
    add("r", arrival=1.0)
    (first,), _ = processor.process([update(byte_level, "r", "hello ")])
    (last,), to_abort = processor.process([update(byte_level, "r", "there", finish_reason="length")])
    assert (first.request_id, first.prompt, first.finished) == ("r", "hi", False)
    assert list(first.prompt_token_ids) == byte_level.encode("hi")
    assert first.outputs[0].text_delta + last.outputs[0].text_delta == last.outputs[0].text == "hello there"
    assert (last.finished, to_abort, processor.num_unfinished) == (True, [], 0)
    assert (last.metrics.arrival, last.metrics.first_token, last.metrics.finished) == (1.0, 10.0, 11.0)


def test_children_come_back_under_one_request(processor, add, byte_level):
    ids = add("r", n=2)
    outputs, _ = processor.process([update(byte_level, ids[1], "b"), update(byte_level, ids[0], "a")])
    assert [[c.text for c in o.outputs] for o in outputs] == [["a", "b"]]
    (half,), _ = processor.process([update(byte_level, ids[0], "x", finish_reason="stop")])
    assert not half.finished
    (whole,), _ = processor.process([update(byte_level, ids[1], "y", finish_reason="length")])
    assert whole.finished
    assert [(c.text, c.finish_reason) for c in whole.outputs] == [("ax", "stop"), ("by", "length")]


def test_a_stop_string_aborts_in_the_core_and_later_updates_are_ignored(processor, add, byte_level):
    add("r", stop="ST")
    (output,), to_abort = processor.process([update(byte_level, "r", "aST and more")])
    assert (output.finished, output.outputs[0].text, output.outputs[0].stop_reason) == (True, "a", "ST")
    assert to_abort == [AbortRequest(request_id="r")]
    late = [update(byte_level, "r", "late"), update(byte_level, "r", finish_reason="abort")]
    assert processor.process(late) == ([], [])


def test_a_stop_string_in_the_cores_last_update_needs_no_abort(processor, add, byte_level):
    add("r", stop="ST")
    (output,), to_abort = processor.process([update(byte_level, "r", "aST", finish_reason="length")])
    assert (output.outputs[0].finish_reason, to_abort) == ("stop", [])


def test_a_stop_string_ends_one_child_and_not_its_sibling(processor, add, byte_level):
    ids = add("r", n=2, stop="ST")
    (output,), to_abort = processor.process([update(byte_level, ids[0], "aST"), update(byte_level, ids[1], "b")])
    assert [c.finish_reason for c in output.outputs] == ["stop", None]
    assert to_abort == [AbortRequest(request_id=ids[0])]
    assert processor.num_unfinished == 1


def test_without_stream_only_the_end_is_returned(processor, add, byte_level):
    add("r", stream=False)
    assert processor.process([update(byte_level, "r", "a")]).outputs == []
    (output,) = processor.process([update(byte_level, "r", "b", finish_reason="length")]).outputs
    assert output.outputs[0].text == output.outputs[0].text_delta == "ab"


def test_abort_finishes_what_runs_and_tells_the_core(processor, add, byte_level):
    ids = add("r", n=2)
    add("other")
    processor.process([update(byte_level, ids[0], "a", finish_reason="stop"), update(byte_level, ids[1], "b")])
    outputs, to_abort = processor.abort(["r", "unknown"])
    assert [[(c.text, c.finish_reason) for c in o.outputs] for o in outputs] == [[("a", "stop"), ("b", "abort")]]
    assert to_abort == [AbortRequest(request_id=ids[1])]
    assert processor.num_unfinished == 1


def test_fail_all_gives_every_request_the_error(processor, add):
    add("a")
    add("b", n=2, stream=False)
    outputs, _ = processor.fail_all("the device is gone")
    assert [(o.request_id, o.error, o.finished) for o in outputs] == [
        ("a", "the device is gone", True),
        ("b", "the device is gone", True),
    ]
    assert processor.num_unfinished == 0


def test_outputs_come_in_the_order_of_the_updates(processor, add, byte_level):
    add("a")
    add("b")
    outputs, _ = processor.process([update(byte_level, "b", "x"), update(byte_level, "a", "y")])
    assert [o.request_id for o in outputs] == ["b", "a"]


def test_an_id_in_use_is_refused_and_free_again_afterwards(processor, add, byte_level):
    add("r", n=2)
    for taken in ("r", "r/1"):
        with pytest.raises(RequestError, match=f"'{taken}' is in use"):
            add(taken)
    assert processor.num_unfinished == 1
    processor.abort(["r"])
    add("r")


def test_without_a_tokenizer_there_are_only_token_ids():
    params = SamplingParams()
    children = InputProcessor(None, vocab_size=10, max_model_len=10).process("r", [1, 2], params)
    processor = OutputProcessor(None)
    processor.add("r", None, params, children)
    (output,) = processor.process([TokenUpdate(request_id="r", token_ids=(3, 4), finish_reason="length")]).outputs
    assert (output.prompt, output.outputs[0].text, output.outputs[0].token_ids) == (None, "", (3, 4))

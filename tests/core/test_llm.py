"""The Python front door on the CPU backend, with a tiny random Llama: jobs, chats, streams and their mixtures."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isoinfer.errors import BackendError, CheckpointError, RequestError, TemplateError, UserError
from isoinfer.llm import LLM
from isoinfer.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def llm(open_llm: Callable[..., LLM]) -> LLM:
    opened = open_llm()
    assert opened.num_unfinished == 0, "an earlier test left requests behind"
    return opened


@pytest.fixture(scope="module")
def chat_llm(tiny: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """The tiny model with a chat template that refuses system messages."""
    folder = tmp_path_factory.mktemp("chat")
    for file in Path(tiny.path).iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "tokenizer_config.json").unlink()
    config = {"eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return LLM(str(folder), dtype="float32", threads=1, max_model_len=120)


def texts(outputs: list[Any]) -> list[str]:
    return [completion.text for output in outputs for completion in output.outputs]


def lengths(outputs: list[Any]) -> list[int]:
    return [len(completion.token_ids) for output in outputs for completion in output.outputs]


def test_every_form_of_prompt_gives_the_same(llm: LLM) -> None:
    ids = llm.tokenizer.encode("abc")
    (expected,) = texts(llm.generate("abc", GREEDY))
    assert len(expected) > 3
    for prompts in (["abc"], ids, [ids], np.array(ids), [np.array(ids)], tuple(ids)):
        assert texts(llm.generate(prompts, GREEDY)) == [expected], prompts
    many = llm.generate(["abc", ids, "zq"], [GREEDY, GREEDY, SamplingParams(temperature=0, max_tokens=2)])
    assert texts(many)[:2] == [expected] * 2
    assert lengths(many) == [8, 8, 2]
    assert [output.prompt for output in many] == ["abc", None, "zq"]


def test_nothing_gives_nothing(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_a_bad_item_is_its_own_error_and_the_others_go_on(llm: LLM) -> None:
    good, *bad = llm.generate(["abc", "", [9999], "x" * 300, [1.5], []], GREEDY)
    assert good.error is None
    assert len(good.outputs[0].token_ids) == 8
    for output, message in zip(bad, ("empty", "9999", "300 tokens", "token ids", "empty"), strict=True):
        assert message in output.error
        assert (output.finished, output.outputs) == (True, [])
    assert llm.num_unfinished == 0


def test_params_for_each_must_be_as_many(llm: LLM) -> None:
    with pytest.raises(UserError, match="2 prompts but 1 sampling_params"):
        llm.generate(["a", "b"], [GREEDY])


def test_a_growth_beyond_all_kv_ends_at_the_context(open_llm: Callable[..., LLM]) -> None:
    llm = open_llm(max_model_len=32)
    (output,) = llm.generate("abc", SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    assert output.outputs[0].finish_reason == "length"
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 32


def test_stream_grows_and_ends_as_generate_does(llm: LLM) -> None:
    (whole,) = llm.generate("hello", GREEDY)
    outputs = list(llm.stream("hello", GREEDY))
    assert [output.finished for output in outputs] == [False] * 7 + [True]
    assert "".join(output.outputs[0].text_delta for output in outputs) == whole.outputs[0].text
    assert outputs[-1].outputs[0].token_ids == whole.outputs[0].token_ids
    assert outputs[-1].outputs[0].finish_reason == "length"


def test_streams_side_by_side_lose_nothing(llm: LLM) -> None:
    expected = texts(llm.generate(["abc", "xyz"], GREEDY))
    pairs = list(zip(llm.stream("abc", GREEDY), llm.stream("xyz", GREEDY), strict=True))
    for side in (0, 1):
        assert "".join(pair[side].outputs[0].text_delta for pair in pairs) == expected[side]


def test_a_job_in_the_middle_of_a_stream_loses_nothing(llm: LLM) -> None:
    expected = texts(llm.generate(["abc", "xyz"], GREEDY))
    stream = llm.stream("abc", GREEDY)
    deltas = [next(stream).outputs[0].text_delta]
    assert texts(llm.generate("xyz", GREEDY)) == expected[1:]
    deltas += [output.outputs[0].text_delta for output in stream]
    assert "".join(deltas) == expected[0]


def test_a_stream_that_is_dropped_aborts_its_request(llm: LLM) -> None:
    stream = llm.stream("abc", SamplingParams(temperature=0, max_tokens=100, ignore_eos=True))
    next(stream)
    assert llm.num_unfinished == 1
    stream.close()
    assert llm.num_unfinished == llm._engine.num_unfinished == 0
    assert llm._engine.scheduler.kv_usage == 0


def test_a_stream_whose_request_is_aborted_ends(llm: LLM) -> None:
    stream = llm.stream("abc", SamplingParams(temperature=0, max_tokens=100, ignore_eos=True))
    request_id = next(stream).request_id
    (last,) = llm.abort(request_id)
    assert last.outputs[0].finish_reason == "abort"
    assert [output.finished for output in stream] == [True]


def test_submitted_requests_live_beside_a_job(llm: LLM) -> None:
    expected = texts(llm.generate(["abc", "xyz"], GREEDY))
    llm.submit("mine", "abc", GREEDY)
    longer = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    assert lengths(llm.generate("xyz", longer)) == [20]
    outputs = llm.step()
    assert [output.request_id for output in outputs] == ["mine"] * 8
    assert [output.finished for output in outputs] == [False] * 7 + [True]
    assert outputs[-1].outputs[0].text == expected[0]
    assert llm.step() == []


def test_submit_step_abort(llm: LLM) -> None:
    llm.submit("a", "abc", GREEDY)
    llm.submit("a1", "abc", GREEDY)
    with pytest.raises(RequestError, match="in use"):
        llm.submit("a", "x", GREEDY)
    llm.step()
    (ended,) = llm.abort("a")
    assert ended.outputs[0].finish_reason == "abort"
    assert llm.abort("a") == []
    outputs = []
    while llm.num_unfinished:
        outputs += llm.step()
    assert {output.request_id for output in outputs} == {"a1"}


def test_an_interrupted_job_leaves_nothing_behind(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step, calls = llm._engine.step, []

    def interrupted() -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(llm._engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc", "xyz"], GREEDY)
    assert llm.num_unfinished == llm._engine.num_unfinished == 0
    monkeypatch.undo()
    assert lengths(llm.generate("abc", GREEDY)) == [8]


def test_n_children_differ_and_come_again_with_the_seed(llm: LLM) -> None:
    params = SamplingParams(n=4, temperature=1.5, seed=5, max_tokens=12)
    first, again = (llm.generate("abc", params)[0] for _ in range(2))
    assert [c.index for c in first.outputs] == [0, 1, 2, 3]
    assert len({c.token_ids for c in first.outputs}) == 4
    assert [c.token_ids for c in first.outputs] == [c.token_ids for c in again.outputs]
    fresh = [llm.generate("abc", SamplingParams(temperature=1.5, max_tokens=12))[0] for _ in range(2)]
    assert fresh[0].outputs[0].token_ids != fresh[1].outputs[0].token_ids, "without a seed each has its own"


def test_n_children_stop_one_by_one(llm: LLM) -> None:
    params = SamplingParams(n=6, temperature=2.0, seed=1, max_tokens=40, stop=["e", "a", "i", "o"])
    (output,) = llm.generate("abc", params)
    assert {c.finish_reason for c in output.outputs} <= {"stop", "length"}
    assert len({len(c.token_ids) for c in output.outputs}) > 1
    assert llm._engine.num_unfinished == 0


def test_a_stop_string_ends_the_request_in_the_core(llm: LLM) -> None:
    (whole,) = texts(llm.generate("hello", SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)))
    stop = whole[5:7]
    steps = llm._engine.scheduler.stats.num_steps
    (output,) = llm.generate("hello", SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop=[stop]))
    at = whole.index(stop)
    assert output.outputs[0].text == whole[:at]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", stop)
    assert llm._engine.scheduler.stats.num_steps - steps == at + 2, "the core went on after the stop string"
    assert llm._engine.num_unfinished == 0
    assert llm._engine.scheduler.kv_usage == 0


def test_chat_renders_the_template_without_adding_tokens(chat_llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert chat_llm.render_chat(messages) == "<user>hi<assistant>"
    (answer,) = chat_llm.chat(messages, GREEDY)
    assert texts([answer]) == texts(chat_llm.generate("<user>hi<assistant>", GREEDY))
    assert "".join(o.outputs[0].text_delta for o in chat_llm.stream_chat(messages, GREEDY)) == texts([answer])[0]
    chat_llm.submit_chat("c", messages, GREEDY)
    last = [output for _ in range(8) for output in chat_llm.step()][-1]
    assert texts([last]) == texts([answer])


def test_a_conversation_that_the_template_rejects_is_its_own_error(chat_llm: LLM) -> None:
    good, bad = [{"role": "user", "content": "hi"}], [{"role": "system", "content": "be kind"}]
    outputs = chat_llm.chat([good, bad, [{"role": "user"}]], GREEDY)
    assert outputs[0].error is None
    assert "no system here" in outputs[1].error
    assert "messages[0]" in outputs[2].error
    with pytest.raises(TemplateError, match="no system here"):
        chat_llm.submit_chat("c", bad)
    assert chat_llm.num_unfinished == 0


def test_chat_without_a_template_says_what_to_do(llm: LLM) -> None:
    with pytest.raises(TemplateError, match="use generate with a prompt"):
        llm.chat([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"dtype": "float64"}, BackendError, "not float64"),
        ({"threads": 0}, BackendError, "threads must be at least 1"),
        ({"backend_options": {"stream": "sideways"}}, BackendError, "stream=inline|thread"),
        ({"quantization": "int3"}, UserError, "no quantization 'int3'"),
        ({"max_model_len": 257}, UserError, "at most 256 positions"),
        ({"max_model_len": 1}, UserError, "at least 2"),
        ({"kv_memory": "1KiB", "max_model_len": 200}, UserError, "KiB for KV hold .*raise kv_memory"),
        ({"kv_memory": "many"}, UserError, "cannot read 'many'"),
        ({"kv_memory": "900TiB"}, UserError, "are free"),
        ({"max_num_seqs": 0}, UserError, "max_num_seqs must be at least 1"),
        ({"backend": "abacus"}, UserError, "abacus"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    tiny: SimpleNamespace, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message.replace("|", r"\|")):
        LLM(tiny.path, **settings)


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        LLM(str(tmp_path / "nowhere"))


def test_what_was_chosen_is_described(tiny: SimpleNamespace) -> None:
    calls: list[tuple[int, int]] = []
    llm = LLM(tiny.path, dtype="float32", threads=1, max_model_len=64, progress=lambda *n: calls.append(n))
    text = "\n".join(llm.describe())
    assert "LlamaForCausalLM, 2 layers" in text
    assert "1 threads, inline stream" in text
    assert "context 64 tokens" in text
    assert calls[-1][0] == calls[-1][1] == len(calls)
    ops = {row["op"]: row for row in llm.explain()}
    assert {"linear", "paged_attention", "rope_kv_write", "argmax"} <= ops.keys()
    assert all(row["status"] == "supported" for row in ops.values())
    llm.close()


@pytest.mark.parametrize("where", ["hidden", "logits"])
def test_an_interrupt_in_the_middle_of_a_step_leaves_a_working_engine(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Ctrl-C while a chat answers: the answer ends, the next one works."""
    expected = texts(llm.generate(["abc", "xyz"], GREEDY))
    forward, calls = llm._engine._runner._forward, []
    original = getattr(forward, where)

    def interrupted(*args: Any) -> Any:
        calls.append(1)
        if len(calls) in (3, 6):
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(forward, where, interrupted)
    for job in (lambda: llm.generate("abc", GREEDY), lambda: list(llm.stream("abc", GREEDY))):
        with pytest.raises(KeyboardInterrupt):
            job()
        assert llm.num_unfinished == llm._engine.num_unfinished == 0
        assert llm._engine.scheduler.kv_usage == 0
    assert texts(llm.generate(["abc", "xyz"], GREEDY)) == expected
    assert not llm._engine.scheduler._in_flight


def test_a_closed_llm_lets_go_and_says_so(tiny: SimpleNamespace) -> None:
    llm = LLM(tiny.path, dtype="float32", threads=1, max_model_len=200)
    stream = llm.stream("ab", SamplingParams(max_tokens=5))
    next(stream)
    engine = weakref.ref(llm._engine)
    llm.close()
    llm.close()
    stream.close()
    gc.collect()
    assert engine() is None, "weights and KV are still held"
    with pytest.raises(UserError, match="closed; make a new one"):
        llm.generate("ab")
    with pytest.raises(UserError, match="closed; make a new one"):
        llm.step()
    assert llm.describe(), "what it was may still be asked"

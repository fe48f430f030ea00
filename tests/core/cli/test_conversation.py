"""The conversation on a terminal: what is remembered, what commands do, what Ctrl-C stops."""

from __future__ import annotations

import pytest

from isoinfer.cli.conversation import Conversation
from isoinfer.errors import RequestError
from isoinfer.outputs import CompletionOutput, RequestMetrics, RequestOutput
from isoinfer.sampling_params import SamplingParams


class _Parrot:
    """Answers with the last message in capitals, in two pieces; notes what it was asked and what was closed."""

    def __init__(self):
        self.asked, self.closed = [], 0

    def stream_chat(self, messages, params):
        self.asked.append([(m["role"], m["content"]) for m in messages])
        if messages[-1]["content"] == "long":
            raise RequestError("too long")
        return self._pieces(messages[-1]["content"].upper())

    def _pieces(self, text):
        try:
            yield _output(text[:2], text[:2], done=False)
            if text == "STOP ME":
                raise KeyboardInterrupt
            yield _output(text, text[2:], done=True)
        finally:
            self.closed += 1


def _output(text, delta, *, done):
    completion = CompletionOutput(
        index=0, text=text, token_ids=(), text_delta=delta, finish_reason="stop" if done else None
    )
    return RequestOutput(
        request_id="0",
        prompt=None,
        prompt_token_ids=(),
        outputs=[completion],
        metrics=RequestMetrics(arrival=0.0),
        finished=done,
        error="stumbled" if text == "STUMBLE" else None,
    )


@pytest.fixture
def talk(typist, capsys):
    def go(*lines, system=None):
        typist(*lines)
        llm = _Parrot()
        Conversation(llm, SamplingParams(), system).run()
        return llm, *capsys.readouterr()

    return go


def test_turns_are_remembered_and_answers_streamed(talk):
    llm, out, _ = talk("hello", "", "again")
    assert out == "HELLO\nAGAIN\n"
    assert llm.asked[1] == [("user", "hello"), ("assistant", "HELLO"), ("user", "again")]


def test_reset_forgets_and_system_sets(talk):
    llm, _, _ = talk("one", "/reset", "/system be kind", "two", "/system", "three", "/exit", "never", system="old")
    assert llm.asked[0] == [("system", "old"), ("user", "one")]
    assert llm.asked[1] == [("system", "be kind"), ("user", "two")]
    assert llm.asked[2][0] == ("user", "two")
    assert len(llm.asked) == 3


def test_an_unknown_command_is_help_and_not_sent(talk):
    llm, _, err = talk("/what")
    assert llm.asked == []
    assert err.count("/reset forgets") == 2


@pytest.mark.parametrize("bad", ["stop me", "long", "stumble"])
def test_a_question_without_a_whole_answer_is_not_remembered(talk, bad):
    llm, _, err = talk(bad, "next")
    assert llm.asked[1] == [("user", "next")]
    assert any(word in err for word in ("stopped", "error: too long", "error: stumbled"))
    assert llm.closed == sum(question[-1][1] != "long" for question in llm.asked)


def test_ctrl_c_at_the_prompt_clears_the_line_and_ctrl_d_leaves(talk):
    llm, out, _ = talk(KeyboardInterrupt(), "hi", EOFError(), "never")
    assert out == "HI\n"
    assert len(llm.asked) == 1

"""One chat answer, printed while it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoinfer.outputs import RequestOutput
from isoinfer.sampling_params import SamplingParams

if TYPE_CHECKING:
    from isoinfer.llm import LLM


def stream_answer(
    llm: LLM, messages: list[dict[str, Any]], params: SamplingParams, *, show: bool = True
) -> RequestOutput:
    """The finished output. An interrupt ends the request in the engine and passes through."""
    last: RequestOutput | None = None
    stream = llm.stream_chat(messages, params)
    try:
        for last in stream:
            if show:
                print(last.outputs[0].text_delta, end="", flush=True)
    finally:
        stream.close()  # type: ignore[attr-defined]
        if show:
            print(flush=True)
    assert last is not None
    return last

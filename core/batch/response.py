"""The answer to one request line as OpenAI's `chat.completion` or `text_completion` object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isoinfer.batch.engine import Decoder
from isoinfer.batch.logprobs import chat_logprobs, completion_logprobs
from isoinfer.batch.request import ChatRequest, CompletionRequest, LineRequest
from isoinfer.outputs import CompletionOutput, RequestOutput


def response_body(
    request: LineRequest,
    outputs: Sequence[RequestOutput],
    *,
    name: str,
    created: int,
    model_name: str,
    decoder: Decoder | None,
) -> dict[str, Any]:
    """The body of a status-200 response. `outputs`: one finished output per prompt. `name`: unique tail of the id."""
    chat = isinstance(request, ChatRequest)
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{name}",
        "object": "chat.completion" if chat else "text_completion",
        "created": created,
        "model": request.model or model_name,
        "choices": _choices(request, outputs, decoder),
        "usage": usage(request, outputs),
        "system_fingerprint": None,
    }


def usage(request: LineRequest, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """Tokens of all prompts (each once) and of all completions."""
    scores = isinstance(request, CompletionRequest) and request.scores
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    completion = 0 if scores else sum(len(c.token_ids) for output in outputs for c in output.outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(output.num_cached_tokens for output in outputs)},
    }


def _choices(request: LineRequest, outputs: Sequence[RequestOutput], decoder: Decoder | None) -> list[dict[str, Any]]:
    flat = [(output, completion) for output in outputs for completion in output.outputs]
    if isinstance(request, ChatRequest):
        return [_chat_choice(i, completion, request) for i, (_, completion) in enumerate(flat)]
    return [_text_choice(i, output, completion, request, decoder) for i, (output, completion) in enumerate(flat)]


def _chat_choice(index: int, completion: CompletionOutput, request: ChatRequest) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": completion.text, "refusal": None},
        "logprobs": chat_logprobs(completion, request.params.logprobs or 0),
        "finish_reason": completion.finish_reason,
    }


def _text_choice(
    index: int,
    output: RequestOutput,
    completion: CompletionOutput,
    request: CompletionRequest,
    decoder: Decoder | None,
) -> dict[str, Any]:
    text = "" if request.scores else completion.text
    if request.echo:
        text = _prompt_text(output, decoder) + text
    return {
        "index": index,
        "text": text,
        "logprobs": _text_logprobs(output, completion, request, decoder),
        "finish_reason": "length" if request.scores else completion.finish_reason,
    }


def _prompt_text(output: RequestOutput, decoder: Decoder | None) -> str:
    if output.prompt is not None:
        return output.prompt
    return "" if decoder is None else decoder.decode(output.prompt_token_ids, skip_special_tokens=False)


def _text_logprobs(
    output: RequestOutput, completion: CompletionOutput, request: CompletionRequest, decoder: Decoder | None
) -> dict[str, Any] | None:
    if request.params.logprobs is None:
        return None
    token_ids = () if request.scores else completion.token_ids
    entries = [] if request.scores else list(completion.logprobs or ())
    prompt_ids = output.prompt_token_ids if request.echo else ()
    prompt_entries = (output.prompt_logprobs or []) if request.echo else []

    def text_of(token: int) -> str:
        return f"token_id:{token}" if decoder is None else decoder.decode([token], skip_special_tokens=False)

    return completion_logprobs((*prompt_ids, *token_ids), [*prompt_entries, *entries], request.params.logprobs, text_of)

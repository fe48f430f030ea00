"""From a request body to SamplingParams: OpenAI's words for length and log-probabilities become vLLM's."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from isoinfer.batch.bodies import ChatBody, CommonBody, CompletionBody
from isoinfer.batch.line_error import LineError
from isoinfer.errors import RequestError
from isoinfer.sampling_params import SamplingParams

# Of each body only these go straight through; the rest need a word with the endpoint's meaning.
_SHARED = frozenset(f.name for f in fields(SamplingParams)) & frozenset(CommonBody.model_fields) - {"max_tokens"}
DEFAULT_COMPLETION_TOKENS = 16


def chat_sampling(body: ChatBody) -> SamplingParams:
    """Without a limit a chat answer may fill the context, as the online API has it. LineError for a bad value."""
    limits = {limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None}
    if len(limits) > 1:
        raise LineError(
            "invalid_value",
            "max_tokens and max_completion_tokens differ. Give only max_completion_tokens.",
            param="max_tokens",
        )
    return _build(body, {"max_tokens": next(iter(limits), None), "logprobs": _chat_logprobs(body)})


def _chat_logprobs(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise LineError("invalid_value", "top_logprobs needs logprobs: true. Set both.", param="top_logprobs")
    return None


def completion_sampling(body: CompletionBody) -> SamplingParams:
    """`max_tokens` 0 with `echo` scores the prompt: one token is made, and dropped from the answer."""
    max_tokens = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    if only_scores(body):
        max_tokens = 1
    special = {"max_tokens": max_tokens, "logprobs": body.logprobs}
    return _build(body, {**special, "prompt_logprobs": body.logprobs if body.echo else None})


def only_scores(body: CompletionBody) -> bool:
    """Whether the answer is the prompt itself, with nothing generated."""
    return bool(body.echo) and body.max_tokens == 0


def _build(body: CommonBody, special: dict[str, Any]) -> SamplingParams:
    plain = {name: getattr(body, name) for name in _SHARED if getattr(body, name) is not None}
    try:
        return SamplingParams.from_dict({**plain, **special})
    except RequestError as error:
        raise LineError("invalid_value", str(error), param=str(error).partition(" ")[0]) from None

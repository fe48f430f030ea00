"""One line of a batch file as a request for the engine: checked, with its prompts and SamplingParams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isoinfer.batch.bodies import ChatBody, CommonBody, CompletionBody
from isoinfer.batch.line_error import LineError, unreadable
from isoinfer.batch.messages import template_messages
from isoinfer.batch.prompts import Prompt, split_prompts
from isoinfer.batch.reader import Envelope
from isoinfer.batch.sampling import chat_sampling, completion_sampling, only_scores
from isoinfer.batch.validation import check_body, nearest
from isoinfer.jobs import Rank
from isoinfer.sampling_params import SamplingParams

CHAT_URL = "/v1/chat/completions"
COMPLETIONS_URL = "/v1/completions"
URLS = (CHAT_URL, COMPLETIONS_URL)
# These are arguments of the rendering itself, not variables of a template.
RESERVED_KWARGS = frozenset({"self", "messages", "tools", "documents"})
LINE_FIELDS = frozenset({"custom_id", "method", "url", "body"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One conversation. `template_kwargs` go to the chat template; `rank` is for the scheduler."""

    model: str | None
    messages: list[dict[str, Any]]
    params: SamplingParams
    template_kwargs: dict[str, Any]
    rank: Rank
    num_prompts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """One or more prompts. `scores`: the prompt's own log-probabilities are the answer, nothing is generated."""

    model: str | None
    prompts: list[Prompt]
    params: SamplingParams
    echo: bool
    scores: bool
    rank: Rank

    @property
    def num_prompts(self) -> int:
        return len(self.prompts)


LineRequest = ChatRequest | CompletionRequest


def parse_request(envelope: Envelope) -> LineRequest:
    """What the line asks for. LineError says what is wrong with the line (no status) or with its body (400)."""
    if envelope.error is not None:
        raise envelope.error
    url = _check_line(envelope)
    if url == CHAT_URL:
        return _chat(check_body(ChatBody, envelope.data["body"]))
    return _completion(check_body(CompletionBody, envelope.data["body"]))


def _check_line(envelope: Envelope) -> str:
    data, number = envelope.data, envelope.number
    for name in data:
        if name not in LINE_FIELDS:
            raise unreadable("unknown_parameter", number, f"unknown field {name!r}.{nearest(name, LINE_FIELDS)}")
    for name in ("method", "url", "body"):
        if data.get(name) is None:
            raise unreadable("missing_required_parameter", number, f"the field {name!r} is missing.")
    if data["method"] != "POST":
        raise unreadable("invalid_method", number, f"the method must be 'POST', got {data['method']!r:.60}.")
    url = data["url"]
    if url not in URLS:
        near = nearest(url, URLS) if isinstance(url, str) else ""
        raise unreadable("invalid_url", number, f"the url must be {' or '.join(URLS)}, got {url!r:.60}.{near}")
    return str(url)


def _chat(body: ChatBody) -> ChatRequest:
    return ChatRequest(
        model=body.model,
        messages=template_messages(body.messages),
        params=chat_sampling(body),
        template_kwargs=_template_kwargs(body),
        rank=_rank(body),
    )


def _rank(body: CommonBody) -> Rank:
    return Rank(priority=body.priority or 0, cache_salt=body.cache_salt)


def _template_kwargs(body: ChatBody) -> dict[str, Any]:
    given = body.chat_template_kwargs or {}
    reserved = sorted(RESERVED_KWARGS & given.keys())
    if reserved:
        raise LineError(
            "invalid_value",
            f"chat_template_kwargs must not set {', '.join(map(repr, reserved))}.",
            param="chat_template_kwargs",
        )
    effort = {} if body.reasoning_effort is None else {"reasoning_effort": body.reasoning_effort}
    return {**effort, **given}


def _completion(body: CompletionBody) -> CompletionRequest:
    return CompletionRequest(
        model=body.model,
        prompts=split_prompts(body.prompt),
        params=completion_sampling(body),
        echo=bool(body.echo),
        scores=only_scores(body),
        rank=_rank(body),
    )

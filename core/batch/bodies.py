"""The request bodies of the two endpoints as pydantic models: which fields there are, and of which type.

Ranges are not checked here but by SamplingParams, so that every way in gives the same message. A field
is taken, ignored because it cannot change an answer, or refused because it would and is not built; an
unknown one is an error. Silently dropping a setting is not among the choices.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Refused = Any
"""Type of a field that is known and refused unless it holds one of its `INERT` values."""
Ignored = Any
"""Type of a field that cannot change an answer."""


class CommonBody(BaseModel):
    """What both endpoints take: OpenAI's fields, then vLLM's."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    priority: int | None = None
    cache_salt: str | None = None

    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    stream_options: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None

    stream: Refused = None

    INERT: ClassVar[dict[str, tuple[Any, ...]]] = {"stream": (None, False)}


class ChatBody(CommonBody):
    """Body of `/v1/chat/completions`."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    parallel_tool_calls: Ignored = None

    response_format: Refused = None
    tools: Refused = None
    tool_choice: Refused = None
    functions: Refused = None
    function_call: Refused = None
    modalities: Refused = None
    audio: Refused = None
    prediction: Refused = None
    verbosity: Refused = None
    web_search_options: Refused = None

    INERT: ClassVar[dict[str, tuple[Any, ...]]] = {
        **CommonBody.INERT,
        "response_format": (None, {"type": "text"}),
        "tools": (None, []),
        # Without tools, "auto" means none.
        "tool_choice": (None, "none", "auto"),
        "functions": (None, []),
        "function_call": (None, "none", "auto"),
        "modalities": (None, ["text"]),
        "audio": (None,),
        "prediction": (None,),
        "verbosity": (None,),
        "web_search_options": (None,),
    }


class CompletionBody(CommonBody):
    """Body of `/v1/completions`. `prompt` has four forms, told apart in `prompts.py`."""

    prompt: Any
    echo: bool | None = None
    logprobs: int | None = None

    suffix: Refused = None
    best_of: Refused = None

    INERT: ClassVar[dict[str, tuple[Any, ...]]] = {**CommonBody.INERT, "suffix": (None, ""), "best_of": (None, 1)}

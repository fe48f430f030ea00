"""What the batch runner needs of an engine: a slice of `isoinfer.llm.LLM`, so that tests can bring their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from isoinfer.outputs import RequestOutput
from isoinfer.sampling_params import SamplingParams


class Decoder(Protocol):
    """The part of a tokenizer that `echo` of a token-id prompt needs."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = ...) -> str: ...


class BatchEngine(Protocol):
    """An engine that takes requests and is stepped by its caller.

    `submit` and `submit_chat` raise UserError for a request that can never be served; nothing is added then.
    `step` returns the requests that changed; one that is `finished` comes exactly once.
    """

    @property
    def model_name(self) -> str: ...
    @property
    def tokenizer(self) -> Decoder | None: ...
    @property
    def num_unfinished(self) -> int: ...
    def submit(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> None: ...
    def submit_chat(
        self,
        request_id: str,
        messages: list[dict[str, Any]],
        params: SamplingParams,
        *,
        chat_template_kwargs: dict[str, Any] | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> None: ...
    def step(self) -> list[RequestOutput]: ...
    def abort(self, request_id: str) -> object: ...

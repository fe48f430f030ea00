"""What a tokenizer is made of, whatever file it comes from, and the start and end tokens around a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tokenizers
from tokenizers.processors import TemplateProcessing


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """`special_tokens`: name ("bos_token", ...) to text. `chat_templates`: name ("default", ...) to Jinja source."""

    backend: tokenizers.Tokenizer
    special_tokens: Mapping[str, str]
    eos_token_ids: tuple[int, ...]
    chat_templates: Mapping[str, str]


def add_around(backend: tokenizers.Tokenizer, before: str | None, after: str | None) -> None:
    """Make `encode(..., add_special_tokens=True)` put the token `before` in front of a text and `after` behind it."""
    around = [(alias, token) for alias, token in (("before", before), ("after", after)) if token is not None]
    if not around:
        return
    known = {alias: backend.token_to_id(token) for alias, token in around}
    single = [*(["before:0"] if before is not None else []), "$A:0", *(["after:0"] if after is not None else [])]
    backend.post_processor = TemplateProcessing(
        single=single,
        special_tokens=[{"id": alias, "ids": [known[alias]], "tokens": [token]} for alias, token in around],
    )

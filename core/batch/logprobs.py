"""OpenAI's two forms of log-probabilities, made of ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from isoinfer.outputs import CompletionOutput, Logprob

Entry = dict[int, Logprob]
# JSON has no infinity; a banned token gets what the online API gives it.
LOWEST = -9999.0


def chat_logprobs(output: CompletionOutput, num_best: int) -> dict[str, Any] | None:
    """The `logprobs` of a chat choice: one object per token with its `num_best` best."""
    if output.logprobs is None:
        return None
    pairs = zip(output.token_ids, output.logprobs, strict=True)
    return {"content": [_chat_token(token, entry, num_best) for token, entry in pairs], "refusal": None}


def _chat_token(token: int, entry: Entry, num_best: int) -> dict[str, Any]:
    best = [_chat_object(i, logprob) for i, logprob in _best(entry, num_best)]
    return {**_chat_object(token, entry[token]), "top_logprobs": best}


def _chat_object(token: int, logprob: Logprob) -> dict[str, Any]:
    text = _text(token, logprob)
    # Half a character has no text, and its bytes are not known here.
    encoded = None if "\ufffd" in text else list(text.encode("utf-8", "replace"))
    return {"token": text, "logprob": _finite(logprob.logprob), "bytes": encoded}


def completion_logprobs(
    token_ids: Sequence[int], entries: Sequence[Entry | None], num_best: int, text_of: Callable[[int], str]
) -> dict[str, Any]:
    """The `logprobs` of a text completion. `text_of` names a token without an entry (the prompt's first)."""
    result: dict[str, Any] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    offset = 0
    for token, entry in zip(token_ids, entries, strict=True):
        own = None if entry is None else entry[token]
        text = text_of(token) if own is None else _text(token, own)
        best = None if entry is None else {_text(i, p): _finite(p.logprob) for i, p in _best(entry, num_best)}
        result["text_offset"].append(offset)
        result["tokens"].append(text)
        result["token_logprobs"].append(None if own is None else _finite(own.logprob))
        result["top_logprobs"].append(best)
        offset += len(text)
    return result


def _best(entry: Entry, num_best: int) -> list[tuple[int, Logprob]]:
    """The best of an entry, which holds the token itself first, whatever its rank."""
    ranked = [(token, logprob) for token, logprob in entry.items() if logprob.rank is not None]
    ranked.sort(key=lambda item: item[1].rank or 0)
    return [item for item in ranked if (item[1].rank or 0) <= num_best]


def _text(token: int, logprob: Logprob) -> str:
    return f"token_id:{token}" if logprob.decoded_token is None else logprob.decoded_token


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST

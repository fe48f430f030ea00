"""Incremental detokenisation: text for tokens as they come, never half a character, never taken back.

It knows nothing of a tokenizer's kind. It decodes a short window, some tokens whose text is out (the
context) followed by the pending ones, and takes what the pending ones add. The context is there because a
decoder treats a first token specially (sentencepiece drops its space) and because bytes may need
their neighbours. A text that ends in U+FFFD may be half a character, so it stays pending.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
# A character has at most 4 bytes, a token at least one: what is pending longer than this is not incomplete, it
# is invalid (or the model says U+FFFD), and is given out up to the last place where a character can begin.
MAX_PENDING = 8
MAX_CUT_BACK = 4
MAX_CONTEXT = 16
NUM_PROMPT_CONTEXT = 8


class TokenDecoder(Protocol):
    """The part of a tokenizer that output needs."""

    @property
    def special_ids(self) -> frozenset[int]: ...
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...
    def token_str(self, token_id: int) -> str: ...


class Detokenizer:
    """The text of one completion. All deltas together equal what its tokens add to `decode(prompt)`.

    Exact for any tokenizer whose text grows with its tokens (byte-level BPE with any bytes; sentencepiece
    with byte fallback as long as the bytes are valid UTF-8: its decoder would take back valid characters
    when invalid bytes follow, this does not). Amortised cost per token is constant.
    """

    def __init__(
        self, tokenizer: TokenDecoder, prompt_token_ids: Sequence[int] = (), skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._invisible = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._window = self._prompt_context(prompt_token_ids)
        self._num_context = len(self._window)
        self._context = self._decode(self._window)

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that became certain with these tokens."""
        return "".join([self._push_one(token) for token in token_ids if token not in self._invisible])

    def flush(self) -> str:
        """The text still pending, incomplete characters as U+FFFD. To be called once, at the end."""
        if len(self._window) == self._num_context:
            return ""
        return self._take(self._decode(self._window))

    def _push_one(self, token: int) -> str:
        self._window.append(token)
        text = self._decode(self._window)
        if not text.endswith(REPLACEMENT):
            return self._take(text)
        if len(self._window) - self._num_context < MAX_PENDING:
            return ""
        return self._take_invalid(text)

    def _take(self, text: str) -> str:
        """Give out everything pending; `text` is the decoded window."""
        delta = self._added(text)
        if len(self._window) <= MAX_CONTEXT:
            self._context = text
        elif delta:  # these tokens alone: they begin and end where a character does
            self._window = self._window[self._num_context :]
            self._context = self._decode(self._window)
        else:  # ids without text are no context
            del self._window[self._num_context :]
        self._num_context = len(self._window)
        return delta

    def _take_invalid(self, text: str) -> str:
        """Give out the pending tokens up to the last place where the text can be cut without changing it."""
        for num_left in range(1, MAX_CUT_BACK + 1):
            head, tail = self._window[:-num_left], self._window[-num_left:]
            head_text = self._decode(head)
            if head_text + self._decode(tail) == text:
                self._window = head
                delta = self._take(head_text)
                self._window.extend(tail)
                return delta
        return self._take(text)

    def _added(self, text: str) -> str:
        if text.startswith(self._context):
            return text[len(self._context) :]
        if self._context.endswith(REPLACEMENT):  # the prompt ended inside a character
            return text[_num_common(self._context, text) :]
        return self._decode(self._window[self._num_context :])

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip)

    def _prompt_context(self, prompt_token_ids: Sequence[int]) -> list[int]:
        """The last visible tokens of the prompt, begun where a character begins if that can be seen."""
        tail: list[int] = []
        for token in reversed(prompt_token_ids):
            if int(token) not in self._invisible:
                tail.insert(0, int(token))
            if len(tail) == NUM_PROMPT_CONTEXT:
                break
        for start in range(min(MAX_CUT_BACK, len(tail))):
            if not self._decode(tail[start:]).startswith(REPLACEMENT):
                return tail[start:]
        return tail


def _num_common(a: str, b: str) -> int:
    """Length of the longest common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

"""One completion while it grows: its tokens, their text and log-probabilities, cut at one place when it ends.

`starts[i]` is the length of the text when token i came: the token is part of `text[:end]` iff
`starts[i] < end`. A token whose bytes waited for the next token's starts where that common text starts.
"""

from __future__ import annotations

from bisect import bisect_left

from isoinfer.engine.messages import TokenUpdate
from isoinfer.frontend.detokenizer import Detokenizer
from isoinfer.frontend.logprobs import LogprobReader
from isoinfer.frontend.stop_strings import StopStrings
from isoinfer.outputs import CompletionOutput, Logprob
from isoinfer.sampling_params import SamplingParams


class Completion:
    """The state of one completion. `detokenizer` None = no text and no stop strings."""

    def __init__(
        self, index: int, params: SamplingParams, detokenizer: Detokenizer | None, reader: LogprobReader
    ) -> None:
        self._index = index
        self._params = params
        self._detokenizer = detokenizer
        self._reader = reader
        self._stops = StopStrings(params.stop_strings)
        self._own_stop_ids = frozenset(int(token) for token in params.stop_token_ids or ())
        self._token_ids: list[int] = []
        self._starts: list[int] = []
        self._text = ""
        # Stop strings are looked for only past the text of the first min_tokens tokens.
        self._floor = 0
        self._logprobs: list[dict[int, Logprob]] = []
        self._logprob_sums = [0.0]  # of the first i tokens
        self._finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self._num_shown_text = 0
        self._num_shown_tokens = 0

    @property
    def finished(self) -> bool:
        return self._finish_reason is not None

    @property
    def num_tokens(self) -> int:
        return len(self._token_ids)

    def update(self, update: TokenUpdate) -> None:
        """Take one step's tokens; afterwards `finished` may be true before the core knows (a stop string)."""
        assert not self.finished
        for row, token in enumerate(update.token_ids):
            self._append_logprob(update, row)
            is_stop = update.stop_token == token and row == len(update.token_ids) - 1
            self._append(token, has_text=self._params.include_stop_str_in_output or not is_stop)
            if self.finished:
                return
        if update.finish_reason:
            self.finish(update.finish_reason, update.stop_token)

    def finish(self, reason: str, stop_token: int = -1) -> None:
        """End here, giving out what was held back; a stop string that this completes is the reason instead."""
        if self._detokenizer is not None:
            self._grow(self._detokenizer.flush())
        if not self.finished:
            self._finish_reason = reason
            self._stop_reason = stop_token if stop_token in self._own_stop_ids else None

    def output(self) -> CompletionOutput:
        """What can be shown now. The next call's deltas start where this one ends."""
        num_text = self._num_showable_text()
        num_tokens = self._num_showable_tokens(num_text)
        output = CompletionOutput(
            index=self._index,
            text=self._text[:num_text],
            token_ids=tuple(self._token_ids[:num_tokens]),
            cumulative_logprob=None if self._params.logprobs is None else self._logprob_sums[num_tokens],
            logprobs=None if self._params.logprobs is None else self._logprobs[:num_tokens],
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
            text_delta=self._text[self._num_shown_text : num_text],
            num_new_tokens=num_tokens - self._num_shown_tokens,
        )
        self._num_shown_text, self._num_shown_tokens = num_text, num_tokens
        return output

    def _append(self, token: int, has_text: bool) -> None:
        self._token_ids.append(token)
        self._starts.append(len(self._text))
        if self._detokenizer is not None and has_text:
            self._grow(self._detokenizer.push([token]))
        if self.num_tokens <= self._params.min_tokens:
            self._floor = len(self._text)

    def _append_logprob(self, update: TokenUpdate, row: int) -> None:
        if self._params.logprobs is None:
            return
        assert update.logprobs is not None, "asked for log-probabilities, the core sent none"
        token = update.token_ids[row]
        self._logprobs.append(self._reader.entry(update.logprobs, row, token, self._params.logprobs))
        self._logprob_sums.append(self._logprob_sums[-1] + self._logprobs[-1][token].logprob)

    def _grow(self, delta: str) -> None:
        num_old = len(self._text)
        self._text += delta
        if delta and self._stops and self.num_tokens > self._params.min_tokens:
            self._check_stop_strings(num_old)

    def _check_stop_strings(self, num_old: int) -> None:
        match = self._stops.find(self._text, num_old, self._floor)
        if match is None:
            return
        self._finish_reason, self._stop_reason = "stop", match.stop
        self._cut(match.end if self._params.include_stop_str_in_output else match.start)

    def _cut(self, end: int) -> None:
        self._text = self._text[:end]
        num_tokens = self._num_tokens_before(end)
        del self._token_ids[num_tokens:], self._starts[num_tokens:]

    def _num_tokens_before(self, end: int) -> int:
        return max(bisect_left(self._starts, end), min(self._params.min_tokens, self.num_tokens))

    def _may_be_cut(self) -> bool:
        return bool(self._stops) and not self.finished and not self._params.include_stop_str_in_output

    def _num_showable_text(self) -> int:
        if not self._may_be_cut():
            return len(self._text)
        return len(self._text) - self._stops.num_held(self._text, self._floor)

    def _num_showable_tokens(self, num_text: int) -> int:
        return self._num_tokens_before(num_text) if self._may_be_cut() else self.num_tokens

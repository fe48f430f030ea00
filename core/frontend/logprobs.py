"""Turns the core's log-probability arrays into what users read: one dict of Logprob per token."""

from __future__ import annotations

from isoinfer.engine.messages import TokenLogprobs
from isoinfer.frontend.detokenizer import TokenDecoder
from isoinfer.outputs import Logprob


class LogprobReader:
    """Reads TokenLogprobs rows. Remembers the text of each id it has met (at most one per vocabulary entry)."""

    def __init__(self, tokenizer: TokenDecoder | None) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def entry(self, logprobs: TokenLogprobs, row: int, token: int, num_best: int) -> dict[int, Logprob]:
        """The entry of `token`, then the `num_best` best others; the token is not repeated among them."""
        own, rank = float(logprobs.logprob_T[row]), int(logprobs.rank_T[row])
        entry = {token: Logprob(logprob=own, rank=rank, decoded_token=self.text(token))}
        best = zip(logprobs.top_ids_TX[row, :num_best], logprobs.top_logprobs_TX[row, :num_best], strict=True)
        for place, (best_id, logprob) in enumerate(best, start=1):
            other = int(best_id)
            if other != token:
                entry[other] = Logprob(logprob=float(logprob), rank=place, decoded_token=self.text(other))
        return entry

    def text(self, token: int) -> str | None:
        """The token's text inside a sentence (half a character is U+FFFD). None without a tokenizer."""
        if self._tokenizer is None:
            return None
        if token not in self._texts:
            self._texts[token] = self._tokenizer.token_str(token)
        return self._texts[token]

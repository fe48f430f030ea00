"""One request as the front end sees it: its completions, prompt log-probabilities and times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from isoinfer.engine.messages import TokenUpdate
from isoinfer.frontend.completion import Completion
from isoinfer.frontend.logprobs import LogprobReader
from isoinfer.outputs import Logprob, RequestMetrics, RequestOutput
from isoinfer.sampling_params import SamplingParams


class Request:
    """The state of one request; `stream` says whether unfinished outputs are wanted."""

    def __init__(
        self,
        *,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: tuple[int, ...],
        params: SamplingParams,
        completions: Sequence[Completion],
        stream: bool,
        arrival: float,
        reader: LogprobReader,
    ) -> None:
        self.request_id = request_id
        self.stream = stream
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._params = params
        self._completions = completions
        self._reader = reader
        self._arrival = arrival
        self._first_token: float | None = None
        self._finished_at: float | None = None
        self._error: str | None = None
        self._num_cached_tokens = 0
        self._prompt_logprobs: list[dict[int, Logprob] | None] = [None] * len(prompt_token_ids)

    @property
    def finished(self) -> bool:
        return self._finished_at is not None

    def update(self, completion: Completion, update: TokenUpdate, clock: Callable[[], float]) -> None:
        """Take one update of one of the completions."""
        if update.token_ids and self._first_token is None:
            self._first_token = clock()
        self._error = self._error or update.error or None
        self._num_cached_tokens = max(self._num_cached_tokens, update.num_cached_tokens)
        self._take_prompt_logprobs(update)
        completion.update(update)
        if all(completion.finished for completion in self._completions):
            self._finished_at = clock()

    def output(self) -> RequestOutput:
        """What can be shown now; deltas count from the previous call."""
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=[completion.output() for completion in self._completions],
            metrics=RequestMetrics(arrival=self._arrival, first_token=self._first_token, finished=self._finished_at),
            prompt_logprobs=self._complete_prompt_logprobs(),
            finished=self.finished,
            error=self._error,
            num_cached_tokens=self._num_cached_tokens,
        )

    def _take_prompt_logprobs(self, update: TokenUpdate) -> None:
        if update.prompt_logprobs is None or self._params.prompt_logprobs is None:
            return
        for row in range(len(update.prompt_logprobs.logprob_T)):
            position = update.prompt_logprobs_start + row
            if position > 0:  # nothing precedes position 0
                self._prompt_logprobs[position] = self._reader.entry(
                    update.prompt_logprobs, row, self._prompt_token_ids[position], self._params.prompt_logprobs
                )

    def _complete_prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        if self._params.prompt_logprobs is None or any(entry is None for entry in self._prompt_logprobs[1:]):
            return None
        return list(self._prompt_logprobs)

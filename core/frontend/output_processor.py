"""Turns the core's TokenUpdates into RequestOutputs: the n completions of a request under one roof.

It knows nothing of scheduling: it holds what each running request has produced, and says which ones the
core may stop because their text has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from isoinfer.engine.messages import AbortRequest, AddRequest, TokenUpdate
from isoinfer.errors import RequestError
from isoinfer.frontend.completion import Completion
from isoinfer.frontend.detokenizer import Detokenizer, TokenDecoder
from isoinfer.frontend.logprobs import LogprobReader
from isoinfer.frontend.request import Request
from isoinfer.outputs import RequestOutput
from isoinfer.sampling_params import SamplingParams


class Processed(NamedTuple):
    """`outputs`: one per request that changed, in the order of the updates. `to_abort`: for the core."""

    outputs: list[RequestOutput]
    to_abort: list[AbortRequest]


class OutputProcessor:
    """Every unfinished request of one engine. `clock` gives seconds and never goes back."""

    def __init__(self, tokenizer: TokenDecoder | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokenizer = tokenizer
        self._clock = clock
        self._reader = LogprobReader(tokenizer)
        self._requests: dict[str, Request] = {}
        self._children: dict[str, tuple[Request, Completion]] = {}

    @property
    def num_unfinished(self) -> int:
        """Requests (not completions) that have not finished."""
        return len(self._requests)

    def add(
        self,
        request_id: str,
        prompt: str | None,
        params: SamplingParams,
        children: Sequence[AddRequest],
        *,
        stream: bool = True,
        arrival: float | None = None,
    ) -> None:
        """Expect updates for `children`, the input processor's messages for this request.

        Without `stream` only the finished output is returned. RequestError if an id is in use; nothing is
        added then, and the children must not be sent to the core.
        """
        ids = [child.request_id for child in children]
        taken = [
            child_id for child_id in (request_id, *ids) if child_id in self._children or child_id in self._requests
        ]
        if taken:
            raise RequestError(f"Request id {taken[0]!r} is in use by an unfinished request. Choose another id.")
        prompt_token_ids = tuple(children[0].prompt_token_ids.tolist())
        completions = [
            Completion(index, params, self._detokenizer(params, prompt_token_ids), self._reader)
            for index in range(len(children))
        ]
        request = Request(
            request_id=request_id,
            prompt=prompt,
            prompt_token_ids=prompt_token_ids,
            params=params,
            completions=completions,
            stream=stream,
            arrival=self._clock() if arrival is None else arrival,
            reader=self._reader,
        )
        self._requests[request_id] = request
        self._children.update({i: (request, completion) for i, completion in zip(ids, completions, strict=True)})

    def process(self, updates: Iterable[TokenUpdate]) -> Processed:
        """Take one step's updates. Those of finished or unknown requests are late and ignored."""
        changed: dict[str, Request] = {}
        to_abort = []
        for update in updates:
            if update.request_id not in self._children:
                continue
            request, completion = self._children[update.request_id]
            request.update(completion, update, self._clock)
            changed[request.request_id] = request
            if completion.finished:
                del self._children[update.request_id]
                if not update.finish_reason:
                    to_abort.append(AbortRequest(request_id=update.request_id))
        return Processed(self._outputs(changed.values()), to_abort)

    def abort(self, request_ids: Iterable[str]) -> Processed:
        """Finish requests by their own ids at the user's wish; unknown ones are ignored."""
        return self._end(request_ids, "abort", "")

    def fail_all(self, error: str) -> Processed:
        """Finish every request with an error, for a core that is gone."""
        return self._end(list(self._requests), "error", error)

    def _end(self, request_ids: Iterable[str], reason: str, error: str) -> Processed:
        ended = {name: self._requests[name] for name in request_ids if name in self._requests}
        running = [child_id for child_id, (request, _) in self._children.items() if request.request_id in ended]
        last = [TokenUpdate(request_id=child_id, finish_reason=reason, error=error) for child_id in running]
        outputs, _ = self.process(last)
        return Processed(outputs, [AbortRequest(request_id=child_id) for child_id in running])

    def _outputs(self, requests: Iterable[Request]) -> list[RequestOutput]:
        outputs = []
        for request in requests:
            if request.finished:
                del self._requests[request.request_id]
            if request.finished or request.stream:
                outputs.append(request.output())
        return outputs

    def _detokenizer(self, params: SamplingParams, prompt_token_ids: Sequence[int]) -> Detokenizer | None:
        if self._tokenizer is None or not params.detokenize:
            return None
        return Detokenizer(self._tokenizer, prompt_token_ids, params.skip_special_tokens)

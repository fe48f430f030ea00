"""A small deterministic engine: upper-cases the prompt, and takes as many steps as the prompt's digits say."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from isoinfer.batch.job import BatchJob
from isoinfer.batch.runner import Limits
from isoinfer.errors import RequestError
from isoinfer.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from isoinfer.sampling_params import SamplingParams


class CharTokenizer:
    """One token per character."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, ids))


class CountingEngine:
    """Prompt "a3b" is answered "A3B" after 3 steps. `fail_at`: the step that raises; "?" in a prompt is refused."""

    model_name = "counting"
    tokenizer = CharTokenizer()

    def __init__(self, *, fail_at: int | None = None, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.fail_at, self.error = fail_at, error
        self.num_steps = 0
        self.peak = 0
        self.prompts: list[str] = []
        self.params: list[SamplingParams] = []
        self.aborted: list[str] = []
        self.template_kwargs: list[Any] = []
        self.ranks: deque[tuple[int, str | None]] = deque(maxlen=8)
        self._running: dict[str, list[Any]] = {}

    @property
    def num_unfinished(self) -> int:
        return len(self._running)

    def submit(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> None:
        self.ranks.append((priority, cache_salt))
        text = prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)
        if not text or "?" in text:
            raise RequestError("The prompt is refused.")
        assert request_id not in self._running
        self.prompts.append(text)
        self.params.append(params)
        steps = int("".join(c for c in text if c.isdigit()) or 1)
        self._running[request_id] = [steps, prompt, text, params]
        self.peak = max(self.peak, len(self._running))

    def submit_chat(
        self,
        request_id: str,
        messages: list[dict[str, Any]],
        params: SamplingParams,
        *,
        chat_template_kwargs: dict[str, Any] | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> None:
        self.template_kwargs.append(chat_template_kwargs)
        self.submit(request_id, messages[-1]["content"], params, priority=priority, cache_salt=cache_salt)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        del self._running[request_id]

    def step(self) -> list[RequestOutput]:
        self.num_steps += 1
        if self.num_steps == self.fail_at:
            raise self.error("as told")
        outputs = []
        for request_id, state in list(self._running.items()):
            state[0] -= 1
            if state[0] <= 0:
                del self._running[request_id]
            outputs.append(_output(request_id, state))
        return outputs


def _output(request_id: str, state: list[Any]) -> RequestOutput:
    steps, prompt, text, params = state
    done = steps <= 0
    answer = text.upper() if done else ""
    ids = tuple(map(ord, answer))
    prompt_ids = tuple(map(ord, text))
    completions = [
        CompletionOutput(
            index=index,
            text=answer,
            token_ids=ids,
            logprobs=None if params.logprobs is None else [_entry(token) for token in ids],
            finish_reason="length" if done else None,
        )
        for index in range(params.n)
    ]
    return RequestOutput(
        request_id=request_id,
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_token_ids=prompt_ids,
        outputs=completions,
        metrics=RequestMetrics(arrival=0.0),
        prompt_logprobs=None if params.prompt_logprobs is None else [None, *map(_prompt_entry, prompt_ids[1:])],
        finished=done,
        error="the device stumbled" if done and "!" in text else None,
    )


def _entry(token: int) -> dict[int, Logprob]:
    """The token came second; "!" was better."""
    own = Logprob(logprob=-1.0, rank=2, decoded_token=chr(token))
    return {token: own, 33: Logprob(logprob=-0.5, rank=1, decoded_token="!")}


def _prompt_entry(token: int) -> dict[int, Logprob]:
    return {token: Logprob(logprob=-2.0, rank=1, decoded_token=chr(token))}


@pytest.fixture
def make_engine() -> type[CountingEngine]:
    return CountingEngine


@pytest.fixture
def completion() -> Callable[..., str]:
    """One request line of `/v1/completions`."""

    def make(custom_id: str, prompt: Any, **body: Any) -> str:
        line = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"prompt": prompt, **body}}
        return json.dumps(line)

    return make


@pytest.fixture
def chat() -> Callable[..., str]:
    """One request line of `/v1/chat/completions`."""

    def make(custom_id: str, text: str, **body: Any) -> str:
        messages = [{"role": "user", "content": text}]
        whole = {"messages": messages, **body}
        return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": whole})

    return make


class Files:
    """An input and an output file in a folder, and a job over them."""

    def __init__(self, folder: Path) -> None:
        self.input, self.output = folder / "in.jsonl", folder / "out.jsonl"

    def write(self, *lines: str) -> None:
        self.input.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    def job(self, **options: Any) -> BatchJob:
        return BatchJob(str(self.input), str(self.output), **options)

    def run(self, engine: CountingEngine, *, limits: Limits | None = None, **options: Any) -> list[dict[str, Any]]:
        with self.job(**options) as job:
            job.run(engine, limits=limits)
        return self.records()

    def records(self) -> list[dict[str, Any]]:
        raw = self.output.read_bytes()
        assert raw == b"" or raw.endswith(b"\n")
        return [json.loads(line) for line in raw.splitlines()]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)

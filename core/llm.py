"""The Python front door: text in, text out. Holds the front end and drives the core with messages.

LLM.generate -> Engine.step -> Scheduler.schedule -> StepPlan -> Runner.submit -> forward -> bound op
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from isoinfer.backends.descriptor import BackendConfig
from isoinfer.config import CacheConfig, EngineConfig, SchedulerConfig, parse_bytes
from isoinfer.engine.builder import Progress, build_engine
from isoinfer.engine.messages import AddRequest
from isoinfer.errors import RequestError, TemplateError, UserError
from isoinfer.frontend.chat_template import ChatTemplate
from isoinfer.frontend.input_processor import InputProcessor
from isoinfer.frontend.output_processor import OutputProcessor
from isoinfer.frontend.progress import RequestProgress
from isoinfer.frontend.tokenizer import Tokenizer
from isoinfer.jobs import FIRST_COME, Params, Prompt, Rank, is_one_prompt, params_of, refused
from isoinfer.outputs import RequestOutput
from isoinfer.sampling_params import SamplingParams
from isoinfer.speculation.config import parse_speculative
from isoinfer.stats import EngineStats

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend
    from isoinfer.engine.engine import Engine

Message = Mapping[str, Any]


class LLM:
    """A model on a backend.

    `model`: a Hugging Face folder or a .gguf file. `backend`: NAME[:DEVICE], "auto", or one that was created
    before, which keeps its own dtype, determinism and options. `dtype`: "auto", "float32", "bfloat16", ... as
    the backend has it. `quantization`: None or "int8". `max_model_len`: longest prompt plus answer in tokens.
    `kv_memory`: bytes for KV, such as "2GiB". `deterministic`: a request's bits depend on no other request.
    `enforce_eager`: no captured graphs, even where the backend has them. `scheduling_policy`: fcfs, priority, lpm or
    two-phase. `scheduling_depth`: steps in flight, 1 or 2, None = what pays on the backend.
    `long_prefill_token_threshold`: most prompt tokens of a request in a step that also decodes, 0 = no limit.
    `enable_prefix_caching`: prompts that begin alike share KV. `window_kv`: layers with a window keep KV "paged" or
    in a "ring" for each running request; `swa_replay`: how rings are made good after a hit, "exact" (the default),
    "bounded" or "off". `speculative`: drafts to verify, such as "ngram:5" or "suffix:5"; `spec_accept`: "coupled" or
    "rejection". `check_invariants`: assert the scheduler's, slowly.
    `backend_options`: settings only that backend knows. `progress(done, total)` is called while weights
    load. Raises UserErrors that say what to do.
    """

    def __init__(
        self,
        model: str,
        *,
        backend: str | Backend = "auto",
        dtype: str = "auto",
        quantization: str | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 2048,
        kv_memory: str | int | None = None,
        deterministic: bool = False,
        enforce_eager: bool = False,
        scheduling_policy: str = "fcfs",
        scheduling_depth: int | None = None,
        long_prefill_token_threshold: int = 0,
        enable_prefix_caching: bool = True,
        window_kv: str = "paged",
        swa_replay: str | None = None,
        speculative: str | None = None,
        spec_accept: str = "coupled",
        check_invariants: bool = False,
        fallback: str = "composed",
        threads: int | None = None,
        backend_options: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        config = EngineConfig(
            model=str(model),
            backend=backend,
            backend_config=BackendConfig(
                dtype=dtype,
                deterministic=deterministic,
                fallback=fallback,
                threads=threads,
                options=dict(backend_options or {}),
            ),
            quantization=quantization,
            max_model_len=max_model_len,
            enforce_eager=enforce_eager,
            speculative=None if speculative is None else parse_speculative(speculative, spec_accept),
            cache=CacheConfig(
                kv_memory=None if kv_memory is None else parse_bytes(kv_memory),
                enable_prefix_caching=enable_prefix_caching,
                window_kv=window_kv,
                swa_replay=swa_replay,
            ),
            scheduler=SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                scheduling_policy=scheduling_policy,
                scheduling_depth=scheduling_depth,
                long_prefill_token_threshold=long_prefill_token_threshold,
                check_invariants=check_invariants,
            ),
        )
        built = build_engine(config, progress)
        self.model_name = config.model
        self.max_model_len = built.max_model_len
        self.tokenizer: Tokenizer = built.checkpoint.tokenizer()
        self._description, self._recorder = built.description, built.recorder
        self._maybe_engine: Engine | None = built.engine
        self._input = InputProcessor(
            self.tokenizer,
            vocab_size=built.vocab_size,
            max_model_len=built.max_model_len,
            eos_token_ids=_eos_ids(self.tokenizer, built.checkpoint.generation_config),
        )
        self._output = OutputProcessor(self.tokenizer)
        self._template: ChatTemplate | None = None
        self._names = count()
        # Outputs of requests that a job or a stream follows, by id; those of all others wait for `step`.
        self._inboxes: dict[str, list[RequestOutput]] = {}
        self._unclaimed: list[RequestOutput] = []

    # whole jobs

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None, *, progress: bool = False
    ) -> list[RequestOutput]:
        """Complete one prompt or many; results in order. An impossible prompt gives an output with `error`."""
        listed: Sequence[Prompt] = [prompts] if is_one_prompt(prompts) else prompts  # type: ignore[list-item, assignment]
        return self._run([(prompt, True) for prompt in listed], sampling_params, progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Answer one conversation or many; results in order. One that the template rejects gives an `error`."""
        self._chat_template()
        one = not messages or isinstance(messages[0], Mapping)
        listed: Sequence[Sequence[Message]] = [messages] if one else messages  # type: ignore[list-item, assignment]
        items = [self._rendered(conversation, tools, chat_template_kwargs) for conversation in listed]
        return self._run(items, sampling_params, progress)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Complete one prompt, yielding everything so far after each step; `text_delta` has what is new."""
        request_id = self._new_id()
        self.submit(request_id, prompt, sampling_params)
        return self._follow(request_id, self._inboxes.setdefault(request_id, []))

    def stream_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[RequestOutput]:
        """Answer one conversation, streaming."""
        request_id = self._new_id()
        text = self.render_chat(messages, tools=tools, chat_template_kwargs=chat_template_kwargs)
        self._add(request_id, text, sampling_params, add_special_tokens=False)
        return self._follow(request_id, self._inboxes.setdefault(request_id, []))

    # requests one by one

    def submit(
        self,
        request_id: str,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> None:
        """Queue a completion under an id of your own. RequestError if it can never be served.

        `priority`: smaller goes first under that policy. `cache_salt`: KV is shared only with the same salt.
        """
        rank = Rank(priority=priority, cache_salt=cache_salt)
        self._add(request_id, prompt, sampling_params, add_special_tokens=True, rank=rank)

    def submit_chat(
        self,
        request_id: str,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> None:
        """Queue a chat answer under an id of your own. TemplateError or RequestError if that cannot be."""
        text = self.render_chat(messages, tools=tools, chat_template_kwargs=chat_template_kwargs)
        rank = Rank(priority=priority, cache_salt=cache_salt)
        self._add(request_id, text, sampling_params, add_special_tokens=False, rank=rank)

    def step(self) -> list[RequestOutput]:
        """Compute one step; the submitted requests that changed. `finished` marks a request's last output."""
        self._advance()
        outputs, self._unclaimed = self._unclaimed, []
        return outputs

    def abort(self, request_id: str) -> list[RequestOutput]:
        """End a request by its id; its last output, which a stream of it gets too. Unknown ids give none."""
        processed = self._output.abort([request_id])
        for message in processed.to_abort if self._maybe_engine else ():
            self._engine.abort(message)
        self._inboxes.get(request_id, []).extend(processed.outputs)
        return processed.outputs

    @property
    def num_unfinished(self) -> int:
        """Requests that have not finished."""
        return self._output.num_unfinished

    # about

    def describe(self) -> list[str]:
        """What was chosen at start, one line each."""
        return list(self._description)

    def stats(self) -> EngineStats:
        """Counts since start: steps, preemptions, prefix cache, drafts."""
        return self._engine.stats()

    def explain(self) -> list[dict[str, Any]]:
        """Which provider serves each op of this model, and why others do not."""
        return self._recorder.explain()

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text that the model's chat template makes of `messages`."""
        return self._chat_template().render(messages, tools=tools, **dict(chat_template_kwargs or {}))

    def close(self) -> None:
        """Finish device work and let go of weights and KV. Nothing can be asked of this LLM afterwards."""
        engine, self._maybe_engine = self._maybe_engine, None
        if engine is not None:
            engine.close()

    # inside

    @property
    def _engine(self) -> Engine:
        if self._maybe_engine is None:
            raise UserError("this LLM is closed; make a new one")
        return self._maybe_engine

    def _new_id(self) -> str:
        return f"llm-{next(self._names)}"

    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            source = self.tokenizer.chat_template
            if source is None:
                raise TemplateError("this model has no chat template; use generate with a prompt instead of chat")
            self._template = ChatTemplate(source, self.tokenizer.special_tokens_map)
        return self._template

    def _advance(self) -> None:
        """One step; each output goes to whoever follows its request."""
        processed = self._output.process(self._engine.step())
        for message in processed.to_abort:
            self._engine.abort(message)
        for output in processed.outputs:
            self._inboxes.get(output.request_id, self._unclaimed).append(output)

    def _add(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None,
        *,
        add_special_tokens: bool,
        stream: bool = True,
        rank: Rank = FIRST_COME,
    ) -> None:
        params = params or self._input.default_params
        engine = self._engine
        children = self._input.process(
            request_id,
            prompt,
            params,
            priority=rank.priority,
            cache_salt=rank.cache_salt,
            add_special_tokens=add_special_tokens,
        )
        text = prompt if isinstance(prompt, str) else None
        self._output.add(request_id, text, params, children, stream=stream)
        self._send(engine, request_id, children)

    def _send(self, engine: Engine, request_id: str, children: Sequence[AddRequest]) -> None:
        """All children or none: one that the core refuses takes the others back."""
        try:
            for child in children:
                engine.add(child)
        except RequestError:
            self.abort(request_id)
            raise

    def _follow(self, request_id: str, inbox: list[RequestOutput]) -> Iterator[RequestOutput]:
        try:
            finished = False
            while not finished:
                while not inbox:
                    self._advance()
                output = inbox.pop(0)
                finished = output.finished
                yield output
        finally:
            del self._inboxes[request_id]
            self.abort(request_id)

    def _rendered(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any] | None,
    ) -> tuple[Prompt | UserError, bool]:
        try:
            return self.render_chat(messages, tools=tools, chat_template_kwargs=kwargs), False
        except UserError as error:
            return error, False

    def _run(self, items: Sequence[tuple[Prompt | UserError, bool]], params: Params, show: bool) -> list[RequestOutput]:
        """Run all to the end. What an impossible item raises becomes its output's `error`."""
        each = params_of(params, len(items))
        done: dict[str, RequestOutput] = {}
        order: list[str] = []
        inbox: list[RequestOutput] = []
        try:
            for (prompt, add_special_tokens), own in zip(items, each, strict=True):
                request_id = self._new_id()
                order.append(request_id)
                if isinstance(prompt, UserError):
                    done[request_id] = refused(request_id, None, str(prompt))
                    continue
                try:
                    self._add(request_id, prompt, own, add_special_tokens=add_special_tokens, stream=False)
                    self._inboxes[request_id] = inbox
                except RequestError as error:
                    done[request_id] = refused(request_id, prompt, str(error))
            with RequestProgress(len(order), len(done), enabled=show) as bar:
                while len(done) < len(order):
                    self._advance()
                    for output in inbox:
                        done[output.request_id] = output
                        bar.advance(output)
                    inbox.clear()
        finally:
            for request_id in order:
                self._inboxes.pop(request_id, None)
                if request_id not in done:
                    self.abort(request_id)
        return [done[request_id] for request_id in order]


def _eos_ids(tokenizer: Tokenizer, generation_config: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokenizer's own and those of the generation config, which may be one id or a list."""
    extra = generation_config.get("eos_token_id")
    listed = [] if extra is None else extra if isinstance(extra, list) else [extra]
    return tuple(dict.fromkeys((*tokenizer.eos_token_ids, *listed)))

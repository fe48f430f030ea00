"""isoinfer's scheduler alone in its steady state: every request decodes, what the device would answer is made up.

Suffixes: G rows that sample, J 1 + most drafts of a row, K most drafts.
"""

from __future__ import annotations

import gc
import inspect
import time
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from isoinfer.config import SchedulerConfig
from isoinfer.engine.messages import AddRequest, CoreSampling, Int32Array, TokenUpdate
from isoinfer.engine.plan import StepPlan, StepResult
from isoinfer.engine.policy import make_policy
from isoinfer.engine.scheduler import Scheduler
from isoinfer.engine.slots import slots_for
from isoinfer.frontend.output_processor import OutputProcessor
from isoinfer.frontend.tokenizer import Tokenizer
from isoinfer.kv.group_blocks import KVGroup
from isoinfer.kv.manager import KVManager
from isoinfer.sampling_params import SamplingParams
from isoinfer.speculation.config import parse_speculative

VOCAB, PROMPT, BLOCK, LENGTH, NUM_DRAFTS = 49152, 64, 16, 2048, 5
STOP_STRINGS = ("\n\n\n\n\n\n", "</answer>", "\x00")
"""None of them is in the text that is decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the requests ask for. `all_features`: the policy `priority`, priorities, stop ids, and five n-gram drafts
    a row of which a random number is accepted. `text`: stop strings and detokenising, as `LLM.generate` does it."""

    name: str
    all_features: bool = False
    text: bool = False


LOADS = (
    Load(name="plain"),
    Load(name="plain, text", text=True),
    Load(name="all features", all_features=True),
    Load(name="all features, text", all_features=True, text=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Means of a round: processor time of the thread, time on the wall, tokens given to a request."""

    cpu_us: float
    wall_us: float
    tokens: float


class Watch:
    """Adds up time inside `with`: the thread's own, which other work on the machine does not lengthen, and all."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def __enter__(self) -> None:
        self._began = time.thread_time(), time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cpu += time.thread_time() - self._began[0]
        self.wall += time.perf_counter() - self._began[1]


class Device:
    """Answers plans at once, from a real text if there is one, else at random."""

    def __init__(self, text_T: Int32Array | None, num_drafts: int) -> None:
        self._rng = np.random.default_rng(1)
        self._text_T, self._num_drafts = text_T, num_drafts
        self._place = 0

    def answer(self, plan: StepPlan) -> StepResult:
        """What the step is said to have produced; of a row's drafts any number was right."""
        drafts_G = plan.num_drafts_R[plan.samples_R]
        size, most = drafts_G.size, self._num_drafts
        return StepResult(
            step_id=plan.step_id,
            token_GJ=self._tokens(size, most + 1),
            count_G=self._rng.integers(1, drafts_G + 2).astype(np.int32),
            draft_GK=self._rng.integers(10, VOCAB, (size, most)).astype(np.int32),
            num_drafts_G=np.full(size, most, dtype=np.int32),
            logprobs=None,
            prompt_logprobs=None,
        )

    def _tokens(self, rows: int, width: int) -> Int32Array:
        """Each row reads the text from a place of its own."""
        if self._text_T is None:
            return self._rng.integers(10, VOCAB, (rows, width)).astype(np.int32)
        self._place += width
        index_GJ = self._place + 97 * np.arange(rows)[:, None] + np.arange(width)
        return self._text_T[index_GJ % self._text_T.size]


class SteadyState:
    """A scheduler, `depth` steps of it in flight, and whoever takes its updates."""

    def __init__(self, load: Load, num_requests: int, depth: int, tokenizer: Tokenizer | None) -> None:
        assert not load.text or tokenizer is not None, "text needs a tokenizer"
        self._depth = depth
        self._scheduler = _scheduler(load, num_requests, depth)
        num_drafts = NUM_DRAFTS if load.all_features else 0
        self._device = Device(text_of(tokenizer) if load.text and tokenizer else None, num_drafts)
        self._output = OutputProcessor(tokenizer) if load.text else None
        self._in_flight: list[StepPlan] = []
        for number, request in enumerate(_requests(load, num_requests)):
            self._scheduler.add(request)
            if self._output is not None:
                params = SamplingParams(max_tokens=LENGTH - PROMPT, stop=STOP_STRINGS, ignore_eos=True)
                self._output.add(f"r{number}", None, params, [request], stream=False)
        self._most = num_requests * (1 + num_drafts)
        self._num_requests = num_requests

    def start(self) -> None:
        """Compute the prompts, until a step holds one decoding row of each request."""
        watch = Watch()
        while (plan := self._round(watch)).num_rows != self._num_requests or plan.num_tokens > self._most:
            pass
        self._round(watch)

    def measure(self, rounds: int) -> Cost:
        """Means of so many rounds; whole multiples of a block's tokens, since new blocks cost something."""
        watch = Watch()
        before = self._scheduler.table.known_S.sum()
        gc.collect()
        gc.freeze()
        plans = [self._round(watch).num_rows for _ in range(rounds)]
        gc.unfreeze()
        assert set(plans) == {self._num_requests}, "not every request decoded in every round"
        tokens = int(self._scheduler.table.known_S.sum() - before) / self._num_requests / rounds
        return Cost(cpu_us=1e6 * watch.cpu / rounds, wall_us=1e6 * watch.wall / rounds, tokens=tokens)

    def _round(self, watch: Watch) -> StepPlan:
        """As Engine.step goes about it."""
        with watch:
            plan = self._scheduler.schedule()
        assert plan is not None
        self._settle(watch)
        with watch:
            self._scheduler.sample_plan(plan)
        self._in_flight.append(plan)
        if self._depth == 1:
            self._settle(watch)
        return plan

    def _settle(self, watch: Watch) -> None:
        for plan in self._in_flight:
            result = self._device.answer(plan)
            with watch:
                updates = self._scheduler.settle(plan, result)
                self._take(updates)
        self._in_flight.clear()

    def _take(self, updates: list[TokenUpdate]) -> None:
        if self._output is not None:
            processed = self._output.process(updates)
            assert not processed.to_abort, "a stop string was in the text"


def cost(load: Load, num_requests: int, depth: int, rounds: int, tokenizer: Tokenizer | None) -> Cost:
    """Build, start and measure."""
    state = SteadyState(load, num_requests, depth, tokenizer)
    state.start()
    return state.measure(rounds)


def text_of(tokenizer: Tokenizer) -> Int32Array:
    """Token ids of a page of English and code."""
    return np.array(tokenizer.encode(inspect.getsource(inspect)[:40_000]), dtype=np.int32)


def _scheduler(load: Load, num_requests: int, depth: int) -> Scheduler:
    settings = SchedulerConfig(max_num_seqs=num_requests, max_num_batched_tokens=8192)
    slots = slots_for(num_requests, depth)
    kv = KVManager(
        [KVGroup(name="full", num_blocks=num_requests * LENGTH // BLOCK + 100)],
        block_size=BLOCK,
        num_slots=slots,
        max_tokens=LENGTH,
        step_tokens=depth * settings.max_num_batched_tokens,
    )
    return Scheduler(
        settings,
        kv=kv,
        policy=make_policy("priority" if load.all_features else "fcfs"),
        num_slots=slots,
        vocab_size=VOCAB,
        max_model_len=LENGTH,
        depth=depth,
        speculative=parse_speculative(f"ngram:{NUM_DRAFTS}") if load.all_features else None,
    )


def _requests(load: Load, num_requests: int) -> list[AddRequest]:
    rng = np.random.default_rng(0)
    return [
        AddRequest(
            request_id=f"r{number}",
            prompt_token_ids=rng.integers(10, VOCAB, PROMPT).astype(np.int32),
            sampling=CoreSampling(
                max_tokens=LENGTH - PROMPT,
                seed=number,
                temperature=0.7,
                top_p=0.9,
                stop_token_ids=(0, 2) if load.all_features else (),
            ),
            priority=int(rng.integers(0, 4)) if load.all_features else 0,
        )
        for number in range(num_requests)
    ]

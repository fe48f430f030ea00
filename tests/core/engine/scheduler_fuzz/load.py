"""What is drawn for the state machine of the scheduler: an engine and its device, and the requests."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from random import Random
from typing import Any

from hypothesis import strategies as st

from isoinfer.backends.interface import KVSpec, ModelSpec
from isoinfer.config import SCHEDULING_POLICIES
from isoinfer.engine.memory_plan import GroupPlan, MemoryPlan
from isoinfer.engine.messages import CoreSampling
from isoinfer.speculation.config import SpeculativeConfig

VOCAB, EOS = 40, 2
MAX_LEN = {1: 56, 4: 64, 16: 96, 128: 300}
"""Longest request by block size."""
FAMILIES = [[Random(family).randrange(VOCAB) for _ in range(max(MAX_LEN.values()))] for family in range(2)]
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {},
    "cut": {"top_k": 3, "top_p": 0.9, "temperature": 1.3},
    "penalized": {"presence_penalty": 3.0, "frequency_penalty": 1.0, "repetition_penalty": 1.5},
    "greedy-penalized": {"temperature": 0.0, "presence_penalty": 4.0},
    "biased": {"bias_token_ids": (3, 7), "bias_values": (9.0, 8.5)},
    "bad-words": {"bad_words": ((7,), (3, 9), (11, 12, 13))},
    "allowed": {"allowed_token_ids": tuple(range(0, VOCAB, 2))},
}
"""Settings of requests, by a name that says more than they do when an example fails."""


def model_spec(windows: tuple[int | None, ...]) -> ModelSpec:
    """A model with one KV group for each of `windows`."""
    groups = tuple(
        KVSpec(name=f"window-{window}", layers=(i,), num_kv_heads=1, head_dim=1, dtype="float32", window=window)
        for i, window in enumerate(windows)
    )
    return ModelSpec(
        architecture="Sim",
        kv_specs=groups,
        flops_per_token=1,
        bytes_per_token=1,
        weight_bytes=1,
        num_layers=len(groups),
        vocab_size=VOCAB,
        hidden_size=1,
        max_position=max(MAX_LEN.values()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything about engine and device. `room`: size of the pools, in requests of the greatest length."""

    block_size: int
    windows: tuple[int | None, ...]
    room: float
    max_num_seqs: int
    budget: int
    threshold: int
    policy: str
    prefix_caching: bool
    speculative: SpeculativeConfig | None
    model: tuple[tuple[str, int], ...]
    device: tuple[tuple[str, Any], ...]
    fail_rate: float

    @property
    def max_len(self) -> int:
        return MAX_LEN[self.block_size]

    @property
    def spec(self) -> ModelSpec:
        return model_spec(self.windows)

    def memory(self, depth: int, num_scratch_blocks: int) -> MemoryPlan:
        """Pools of `room` times what one request needs."""
        columns, step_tokens = -(-self.max_len // self.block_size), depth * self.budget
        groups = []
        for spec in self.spec.kv_specs:
            seen = columns if spec.window is None else (spec.window - 1 + step_tokens - 2) // self.block_size + 2
            usable = ceil(self.room * min(columns, seen))
            groups.append(GroupPlan(name=spec.name, num_layers=1, num_blocks=1 + usable, bytes_per_block=1))
        return MemoryPlan(
            groups=tuple(groups),
            block_size=self.block_size,
            max_model_len=self.max_len,
            num_scratch_blocks=num_scratch_blocks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request as it is drawn. `length` and `shared` of it in percent: of the longest, and of itself."""

    family: int
    length: int
    shared: int
    own: int
    kind: str
    max_tokens: int
    min_tokens: int
    seed: int
    stops: bool
    priority: int
    salt: str | None
    prefix_caching: bool
    num_logprobs: int
    num_prompt_logprobs: int

    def prompt(self, max_len: int) -> list[int]:
        family, size = FAMILIES[self.family], max(1, (max_len - 1) * self.length // 100)
        shared = size * self.shared // 100
        return family[:shared] + [(token + 1 + self.own) % VOCAB for token in family[shared:size]]

    @property
    def sampling(self) -> CoreSampling:
        return CoreSampling(
            max_tokens=self.max_tokens,
            min_tokens=min(self.min_tokens, self.max_tokens),
            seed=self.seed,
            stop_token_ids=(EOS, 17) if self.stops else (),
            num_logprobs=self.num_logprobs,
            num_prompt_logprobs=self.num_prompt_logprobs,
            **KINDS[self.kind],
        )


def one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


SPECULATIVE = st.builds(
    SpeculativeConfig,
    method=one_of("ngram", "suffix"),
    num_drafts=one_of(1, 3, 5),
    min_match=one_of(1, 2),
    max_match=one_of(2, 8),
)
SETUPS = st.sampled_from(sorted(MAX_LEN)).flatmap(
    lambda block_size: st.builds(
        Setup,
        block_size=st.just(block_size),
        windows=one_of((None,), (None, 3), (None, 9, 20), (5,), (None, 150)),
        room=one_of(1.05, 1.3, 2, 5),
        max_num_seqs=one_of(1, 3, 6, 6),
        budget=one_of(1, 4, 10, 24, 64) if block_size < 128 else one_of(20, 90, 128, 300),
        threshold=one_of(0, 0, 3),
        policy=st.sampled_from(SCHEDULING_POLICIES),
        prefix_caching=one_of(True, True, True, False),
        speculative=st.none() | SPECULATIVE,
        model=st.builds(
            lambda *values: tuple(zip(("layers", "predictable", "eos_every"), values, strict=True)),
            one_of(1, 2),
            one_of(0, 8, 30),
            one_of(0, 0, 9),
        ),
        device=st.builds(
            lambda *values: tuple(zip(("stream", "early_rate", "graphs", "host_lengths", "seed"), values, strict=True)),
            one_of("lazy", "lazy", "eager"),
            one_of(0, 0, 0.3),
            one_of("off", "on"),
            one_of("off", "on"),
            st.integers(0, 99),
        ),
        fail_rate=one_of(0, 0, 0, 0.02, 0.1),
    )
)
JOBS = st.builds(
    Job,
    family=st.integers(0, len(FAMILIES) - 1),
    length=one_of(0, 10, 10, 20, 20, 35, 60, 95),
    shared=one_of(0, 50, 90, 100),
    own=st.integers(0, 2),
    kind=one_of("greedy", "greedy", "greedy", *KINDS),
    max_tokens=one_of(1, 6, 20, 45, 45),
    min_tokens=one_of(0, 0, 4),
    seed=one_of(0, 1, -(2**62)),
    stops=one_of(False, False, True),
    priority=st.integers(0, 2),
    salt=one_of(None, None, "pepper"),
    prefix_caching=one_of(True, True, True, False),
    num_logprobs=one_of(-1, -1, 0, 2),
    num_prompt_logprobs=one_of(-1, -1, -1, 0, 1),
)

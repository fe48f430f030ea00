"""Small random models with windows, and engines over them in which KV that nobody wrote, or that is free, is NaN."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from isoinfer.backends.cpu.backend import CpuBackend
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.registry import create_backend
from isoinfer.config import CacheConfig, EngineConfig, SchedulerConfig
from isoinfer.engine.builder import build_engine
from isoinfer.engine.engine import Engine
from isoinfer.engine.messages import AddRequest, CoreSampling
from isoinfer.speculation.config import parse_speculative

WINDOW, LAYERS, RING_LAYERS, VOCAB = 8, 4, 2, 64
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "sliding_window": WINDOW,
    "bos_token_id": None,
    "eos_token_id": None,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", {"use_sliding_window": True, "max_window_layers": LAYERS - RING_LAYERS}),
    "gpt-oss": (
        "GptOss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "truncate": False},
        },
    ),
    "mistral": ("Mistral", {}),  # every layer has the window: nothing is in blocks
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """A random model on disk, and transformers' own in memory."""

    path: str
    oracle: torch.nn.Module


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Tiny]:
    made = {}
    for name, (family, extra) in FAMILIES.items():
        config = getattr(transformers, f"{family}Config")(**{**SHAPE, **extra})
        config._attn_implementation = "eager"
        oracle = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        generator = torch.Generator().manual_seed(7)
        for key, parameter in oracle.named_parameters():
            mean, std = (1.0, 0.2) if "norm" in key else (0.0, 0.2)
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std + mean)
        path = tmp_path_factory.mktemp(name)
        oracle.save_pretrained(path)
        made[name] = Tiny(path=str(path), oracle=oracle)
    return made


@dataclass(slots=True)
class Answer:
    """What a request said: tokens, the log-probabilities of the best few at each, and how it ended."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[np.ndarray] = field(default_factory=list)
    cached: int = 0
    reason: str = ""

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Answer)
        return (self.tokens, self.reason) == (other.tokens, other.reason) and all(
            np.array_equal(mine, theirs) for mine, theirs in zip(self.logprobs, other.logprobs, strict=True)
        )


def poisoned(backend: Any) -> Any:
    """The backend, with NaN in all KV that nobody has written or that was given up."""
    assert isinstance(backend, CpuBackend)
    allocate = backend.allocate_kv

    def discard(kv: Any, group: int, ids_B: np.ndarray) -> None:
        for layer in map(kv.layer, kv.groups[group]):
            for part in layer.parts:
                part[torch.from_numpy(ids_B).long()] = torch.nan

    def allocate_poisoned(specs: Any, num_blocks: Any) -> Any:
        kv = allocate(specs, num_blocks)
        for group, count in enumerate(num_blocks):
            discard(kv, group, np.arange(count, dtype=np.int32))
        return kv

    backend.discard_blocks, backend.allocate_kv = discard, allocate_poisoned  # type: ignore[method-assign]
    return backend


class Core:
    """An engine over a tiny model, driven by messages. Settings are those of the configs, by name."""

    def __init__(
        self,
        model: Tiny,
        *,
        window_kv: str = "ring",
        replay: str | None = None,
        depth: int = 1,
        budget: int = 64,
        drafts: str | None = None,
        caching: bool = True,
        graphs: bool = False,
        kv_memory: int = 1 << 24,
        max_num_seqs: int = 4,
        native: str = "on",
    ) -> None:
        options = {"native": native, "graphs": "on" if graphs else "off"}
        backend = BackendConfig(dtype="float32", threads=1, deterministic=True, options=options)
        config = EngineConfig(
            model=model.path,
            backend=poisoned(create_backend("cpu", backend)),
            max_model_len=160,
            speculative=None if drafts is None else parse_speculative(drafts, "coupled"),
            cache=CacheConfig(
                kv_memory=kv_memory, enable_prefix_caching=caching, window_kv=window_kv, swa_replay=replay
            ),
            scheduler=SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=budget,
                scheduling_depth=depth,
                check_invariants=True,
            ),
        )
        built = build_engine(config)
        self.engine: Engine = built.engine
        self.description = built.description
        self.answers: dict[str, Answer] = {}

    def add(self, name: str, prompt: Sequence[int], max_tokens: int = 12, salt: str | None = None) -> None:
        sampling = CoreSampling(max_tokens=max_tokens, seed=3, temperature=0.0, num_logprobs=4)
        ids = np.array(prompt, dtype=np.int32)
        self.answers[name] = Answer()
        self.engine.add(AddRequest(request_id=name, prompt_token_ids=ids, sampling=sampling, cache_salt=salt))

    def step(self) -> None:
        for update in self.engine.step():
            answer = self.answers[update.request_id]
            answer.tokens += update.token_ids
            answer.cached, answer.reason = update.num_cached_tokens, update.finish_reason
            if update.logprobs is not None:
                answer.logprobs += list(update.logprobs.top_logprobs_TX)

    def run(self) -> None:
        for _ in range(2000):
            if self.engine.is_idle:
                return
            self.step()
        raise AssertionError("unfinished")

    def ask(self, prompts: Sequence[Sequence[int]], **how: Any) -> list[Answer]:
        """All prompts at once."""
        for index, prompt in enumerate(prompts):
            self.add(str(index), prompt, **how)
        self.run()
        return [self.answers[str(index)] for index in range(len(prompts))]


@pytest.fixture(scope="session")
def open_core(models: Mapping[str, Tiny]) -> Callable[..., Core]:
    """`open_core(name, **settings)`: an engine over one of the models."""
    return lambda name, **settings: Core(models[name], **settings)

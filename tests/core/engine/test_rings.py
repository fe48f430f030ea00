"""Window layers in rings, on real small models: the bits of the paged form, through drafts, hits and failure.

Rings that are free hold NaN, so whoever reads what is not its own shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.backends.cpu.backend import CpuBackend
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.registry import create_backend
from isoinfer.config import CacheConfig, EngineConfig, SchedulerConfig
from isoinfer.engine import assembly
from isoinfer.engine.builder import build_engine
from isoinfer.engine.engine import Engine
from isoinfer.engine.messages import AbortRequest, AddRequest, CoreSampling
from isoinfer.errors import StepError, UserError
from isoinfer.speculation.config import parse_speculative

WINDOW, LAYERS, RING_LAYERS, BLOCK, VOCAB = 8, 4, 2, 16, 64
EXACT = RING_LAYERS * (WINDOW - 1)
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
TIGHT = 110_000
"""Bytes of KV that hold one request's blocks and not four."""
LONG = np.random.default_rng(9).integers(0, VOCAB, 80).tolist()
PROMPTS = [np.random.default_rng(5).integers(0, VOCAB, size).tolist() for size in (5, 21, 40, 65)]
"""The last one leaves one token after whole blocks, which sees all of its window replayed."""


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
def expected(models: Mapping[str, Tiny]) -> Callable[[str], list[Answer]]:
    """What each model says to PROMPTS with its windows in blocks."""
    return cache(lambda name: Core(models[name], window_kv="paged").ask(PROMPTS))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"budget": 7},
        {"budget": WINDOW, "depth": 2},
        {"graphs": True},
        {"drafts": "ngram:3"},
        {"drafts": "ngram:3", "depth": 2, "budget": 17},
        {"drafts": "suffix:3", "depth": 2},
        {"native": "off", "depth": 2},
    ],
    ids=str,
)
def test_rings_say_what_blocks_say(models: Mapping[str, Tiny], expected: Any, name: str, how: dict[str, Any]) -> None:
    answers = Core(models[name], **how).ask(PROMPTS)
    if how.get("native") == "off":  # other kernels, other bits
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected(name)]
    else:
        assert answers == expected(name)


@pytest.mark.parametrize("depth", [1, 2])
def test_drafts_are_accepted_and_rejected(models: Mapping[str, Tiny], depth: int) -> None:
    """So the test above has seen both. A prompt that repeats makes the n-gram proposer find something."""
    core = Core(models["qwen2"], drafts="ngram:4", depth=depth)
    prompts = [PROMPTS[0] * 6, PROMPTS[1] + PROMPTS[1][:9]]
    assert core.ask(prompts, max_tokens=40) == Core(models["qwen2"], window_kv="paged").ask(prompts, max_tokens=40)
    stats = core.engine.scheduler.stats
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


@pytest.mark.parametrize("name", ["qwen2", "gpt-oss"])
@pytest.mark.parametrize("how", [{}, {"budget": 5}, {"budget": 19, "depth": 2}, {"drafts": "ngram:2"}], ids=str)
def test_exact_replay_equals_a_cold_run(
    models: Mapping[str, Tiny], expected: Any, name: str, how: dict[str, Any]
) -> None:
    core = Core(models[name], **how)
    assert core.ask(PROMPTS) == expected(name)
    again = core.ask(PROMPTS)
    assert again == expected(name)
    # Whole blocks before the last token; one that is no longer than the replay is none, and what is replayed counts
    # as computed.
    whole = [(len(prompt) - 1) // BLOCK * BLOCK for prompt in PROMPTS]
    assert [answer.cached for answer in again] == [max(hit - EXACT, 0) for hit in whole]


def test_one_token_less_would_not_do(models: Mapping[str, Tiny], monkeypatch: pytest.MonkeyPatch) -> None:
    """The length of the exact replay is not longer than it must be, and the test above would see a shorter one."""
    exact = assembly.replay_length
    monkeypatch.setattr(assembly, "replay_length", lambda specs, mode: exact(specs, mode) - 1)
    core = Core(models["qwen2"])
    cold, hot = core.ask(PROMPTS), core.ask(PROMPTS)
    assert hot[3].cached == 64 - EXACT + 1
    assert [one == other for one, other in zip(cold, hot, strict=True)] == [True, True, True, False]


def test_without_replay_a_hit_is_a_miss(models: Mapping[str, Tiny], expected: Any) -> None:
    core = Core(models["qwen2"], replay="off")
    assert core.ask(PROMPTS) == core.ask(PROMPTS) == expected("qwen2")
    assert not any(answer.cached for answer in core.answers.values())


def test_bounded_replay_computes_one_window_again_and_differs_from_a_cold_run(
    models: Mapping[str, Tiny], expected: Any
) -> None:
    core = Core(models["qwen2"], replay="bounded")
    assert core.ask(PROMPTS) == expected("qwen2")
    again = core.ask(PROMPTS)
    assert [answer.cached for answer in again] == [0, BLOCK - WINDOW, 2 * BLOCK - WINDOW, 4 * BLOCK - WINDOW]
    assert again[0] == expected("qwen2")[0]
    assert again[3] != expected("qwen2")[3]


class Masked(transformers.DynamicCache):
    """For layers with all their past, K and V of a cold run before `hit`; for those with a window, nothing."""

    def __init__(self, cold: Any, hit: int, first: int, is_full: Sequence[bool]) -> None:
        super().__init__()
        self.cold, self.hit, self.first, self.is_full = cold, hit, first, is_full

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        if not self.is_full[layer_idx]:
            return key, value
        before = self.cold.layers[layer_idx]
        new = self.hit - self.first
        return tuple(
            torch.cat((old[:, :, : self.hit], mine[:, :, new:]), dim=2)
            for old, mine in ((before.keys, key), (before.values, value))
        )


def masked_logits(oracle: Any, tokens: Sequence[int], hit: int) -> torch.Tensor:
    """Of the tokens from hit - WINDOW on, where window layers see nothing before that: by transformers and masks."""
    first, ids = hit - WINDOW, torch.tensor([list(tokens)])
    is_full = [kind == "full_attention" for kind in oracle.config.layer_types]
    count = len(tokens) - first
    with torch.no_grad():
        cold = oracle(ids, past_key_values=transformers.DynamicCache(), use_cache=True).past_key_values
        query, key = torch.arange(first, len(tokens))[:, None], torch.arange(len(tokens))[None, :]
        full = torch.where(key <= query, 0.0, -torch.inf)[None, None]
        seen = (key <= query) & (key > query - WINDOW)
        masks = {"full_attention": full, "sliding_attention": torch.where(seen, 0.0, -torch.inf)[None, None, :, first:]}
        out = oracle(
            ids[:, first:],
            attention_mask=masks,
            position_ids=query.T,
            past_key_values=Masked(cold, hit, first, is_full),
            use_cache=True,
        )
    assert out.logits.shape[1] == count
    logits: torch.Tensor = out.logits[0]
    return logits


@pytest.mark.parametrize("name", ["qwen2", "gpt-oss"])
@pytest.mark.parametrize("budget", [64, 5])
def test_bounded_replay_equals_a_masked_forward(models: Mapping[str, Tiny], name: str, budget: int) -> None:
    """Also while the answer grows, until well after the window has passed the floor."""
    core, prompt = Core(models[name], replay="bounded", budget=budget), PROMPTS[2]
    core.ask([prompt[:33]], max_tokens=1)
    (answer,) = core.ask([prompt], max_tokens=3 * WINDOW)
    hit = answer.cached + WINDOW
    assert hit == 2 * BLOCK
    tokens = prompt + answer.tokens
    logits_TV = masked_logits(models[name].oracle, tokens, hit)
    logprobs_TV = logits_TV.log_softmax(-1)[len(prompt) - 1 - (hit - WINDOW) : -1]
    assert logprobs_TV.argmax(-1).tolist() == answer.tokens
    best = torch.from_numpy(np.array(answer.logprobs))
    torch.testing.assert_close(logprobs_TV.topk(4).values, best, atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("replay", ["exact", "off"])
def test_preempted_requests_go_on_with_the_same_bits(models: Mapping[str, Tiny], depth: int, replay: str) -> None:
    prompts = [prompt + PROMPTS[3][:20] for prompt in PROMPTS]
    roomy = Core(models["qwen2"]).ask(prompts, max_tokens=40)
    tight = Core(models["qwen2"], kv_memory=TIGHT, depth=depth, replay=replay, budget=24)
    assert tight.ask(prompts, max_tokens=40) == roomy
    assert tight.engine.scheduler.stats.num_preemptions > 0


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_that_fails_harms_only_its_own_requests(models: Mapping[str, Tiny], depth: int) -> None:
    core = Core(models["qwen2"], depth=depth, budget=16)
    core.add("ended", PROMPTS[3])
    core.step()
    run = core.engine._runner._run_forward
    core.engine._runner._run_forward = _failing(run)  # type: ignore[method-assign]
    core.step()
    core.engine._runner._run_forward = run  # type: ignore[method-assign]
    core.add("later", PROMPTS[3])
    core.run()
    assert core.answers["ended"].reason == "error"
    assert core.answers["later"] == Core(models["qwen2"]).ask([PROMPTS[3]])[0]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("part", ["submit", "sample", "settle"])
@pytest.mark.parametrize("at", [2, 4, 9])
def test_an_interrupt_costs_time_but_no_bit(
    models: Mapping[str, Tiny], expected: Any, depth: int, part: str, at: int
) -> None:
    """What the steps that were given up wrote into rings may have taken the place of what is still to be read."""
    core = Core(models["qwen2"], depth=depth, budget=16)
    for index, prompt in enumerate(PROMPTS):
        core.add(str(index), prompt)
    for _ in range(at):
        core.step()
    runner: Any = core.engine._runner
    whole = getattr(runner, part)
    setattr(runner, part, _failing(whole, KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        core.step()
    setattr(runner, part, whole)
    core.run()
    assert [core.answers[str(index)] for index in range(len(PROMPTS))] == expected("qwen2")


def _failing(fn: Callable[..., Any], error: type[BaseException] = StepError) -> Callable[..., Any]:
    """`fn`, and then the error: its work is done, and lost."""

    def fails(*args: Any) -> None:
        fn(*args)
        raise error("told to fail")

    return fails


def test_a_slot_that_was_left_hands_nothing_on(models: Mapping[str, Tiny], expected: Any) -> None:
    """Aborted in the middle of a prompt and in the middle of an answer; the next ones take the same slots."""
    core = Core(models["qwen2"], max_num_seqs=1, depth=2, budget=16, caching=False)
    for name, steps in (("prompt", 2), ("answer", 9)):
        core.add(name, PROMPTS[3])
        for _ in range(steps):
            core.step()
        core.engine.abort(AbortRequest(request_id=name))
    assert core.ask(PROMPTS) == expected("qwen2")


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_request_says_the_same_in_any_company(models: Mapping[str, Tiny], alone: Any, data: st.DataObject) -> None:
    """Shared beginnings, salts, chunks, drafts, aborts and a tight pool, with exact replay."""
    draw = data.draw
    core = Core(
        models["qwen2"],
        depth=draw(st.sampled_from([1, 2])),
        budget=draw(st.integers(3, 40)),
        drafts=draw(st.sampled_from([None, "ngram:2", "suffix:3"])),
        kv_memory=draw(st.sampled_from([TIGHT, 1 << 24])),
        max_num_seqs=draw(st.integers(1, 4)),
    )
    asked: dict[str, tuple[int, int]] = {}
    for number in range(draw(st.integers(3, 8))):
        start, length = draw(st.integers(0, 1)), draw(st.integers(1, 66))
        asked[f"r{number}"] = (start, length)
        core.add(f"r{number}", LONG[start : start + length], salt=draw(st.sampled_from([None, "a"])))
        for _ in range(draw(st.integers(0, 12))):
            core.step()
        if draw(st.integers(0, 5)) == 0:
            core.engine.abort(AbortRequest(request_id=f"r{number}"))
            del asked[f"r{number}"]
    core.run()
    for name, (start, length) in asked.items():
        assert core.answers[name] == alone(start, length), (name, start, length)


@pytest.fixture(scope="session")
def alone(models: Mapping[str, Tiny]) -> Callable[[int, int], Answer]:
    """What a request says that is alone with its windows in blocks."""
    core = Core(models["qwen2"], window_kv="paged", caching=False)
    return cache(lambda start, length: core.ask([LONG[start : start + length]])[0])


def test_the_start_says_what_rings_there_are(models: Mapping[str, Tiny]) -> None:
    lines = "\n".join(Core(models["qwen2"], drafts="ngram:2").description)
    assert f"window_{WINDOW}, {RING_LAYERS} layers" in lines
    assert f"4 rings of {WINDOW + 3} tokens" in lines
    with pytest.raises(UserError, match=r"hold the rings of 4 requests, which need .* lower max_num_seqs"):
        Core(models["mistral"], kv_memory=1 << 12)
    with pytest.raises(UserError, match="--window-kv ring"):
        Core(models["qwen2"], window_kv="paged", replay="exact")

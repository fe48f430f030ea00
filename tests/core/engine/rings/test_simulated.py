"""Rings on the simulated device, where a token is a hash of all that it can see and a stale read is an error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.interface import KVSpec, ModelSpec
from isoinfer.backends.registry import create_backend
from isoinfer.config import CacheConfig, EngineConfig, SchedulerConfig
from isoinfer.engine.assembly import Parts, assemble_engine
from isoinfer.engine.builder import memory_of
from isoinfer.engine.engine import Engine
from isoinfer.engine.messages import AbortRequest, AddRequest, CoreSampling
from isoinfer.speculation.config import parse_speculative

LAYERS, WINDOW, VOCAB, LONGEST = 2, 6, 97, 96
TEXT = np.random.default_rng(4).integers(0, VOCAB, LONGEST).tolist()
TINY, AMPLE = 10_000, 1 << 20


def kv_specs(ring: int | None) -> tuple[KVSpec, ...]:
    """As many layers in each group as the device simulates."""
    shape = {"num_kv_heads": 1, "head_dim": 8, "dtype": "bfloat16"}
    full = KVSpec(name="full", layers=tuple(range(LAYERS)), **shape)
    return full, KVSpec(name="window", layers=tuple(range(LAYERS, 2 * LAYERS)), window=WINDOW, ring=ring, **shape)


def open_engine(
    *,
    rings: bool = True,
    replay: str = "exact",
    depth: int = 1,
    budget: int = 64,
    drafts: int = 0,
    caching: bool = True,
    kv_memory: int = AMPLE,
    block_size: int = 4,
) -> Engine:
    options = {"layers": str(LAYERS), "block_size": str(block_size), "predictable": "7"}
    backend = create_backend("sim", BackendConfig(options=options))
    spec = ModelSpec(
        architecture="Hash",
        kv_specs=kv_specs(WINDOW + drafts + 1 if rings else None),
        flops_per_token=1,
        bytes_per_token=1,
        weight_bytes=1,
        num_layers=2 * LAYERS,
        vocab_size=VOCAB,
        hidden_size=1,
        max_position=128,
    )
    config = EngineConfig(
        model="hash",
        backend=backend,
        max_model_len=LONGEST,
        speculative=parse_speculative(f"ngram:{drafts}", "coupled") if drafts else None,
        cache=CacheConfig(
            kv_memory=kv_memory,
            enable_prefix_caching=caching,
            window_kv="ring" if rings else "paged",
            swa_replay=replay if rings else None,
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=3, max_num_batched_tokens=budget, scheduling_depth=depth, check_invariants=True
        ),
    )
    parts = Parts(backend=backend, spec=spec, forward=backend.bind_model(spec), bind=backend.bind)
    return assemble_engine(config, parts, memory_of(config, backend, spec))


def message(name: str, length: int, salt: str | None = None) -> AddRequest:
    sampling = CoreSampling(max_tokens=20, seed=1, temperature=0.0)
    ids = np.array(TEXT[:length], dtype=np.int32)
    return AddRequest(request_id=name, prompt_token_ids=ids, sampling=sampling, cache_salt=salt)


@cache
def alone(length: int) -> list[int]:
    """What a request says that is alone, with its window in blocks and nothing cached."""
    engine = open_engine(rings=False, caching=False)
    engine.add(message("alone", length))
    tokens: list[int] = []
    while not engine.is_idle:
        tokens += [token for update in engine.step() for token in update.token_ids]
    return tokens


def step(engine: Engine, said: dict[str, list[int]]) -> None:
    for update in engine.step():
        assert update.finish_reason != "error", update.error
        said[update.request_id] += update.token_ids


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_load_gives_the_tokens_of_a_lone_request(data: st.DataObject) -> None:
    draw: Callable[[Any], Any] = data.draw
    engine = open_engine(
        replay=draw(st.sampled_from(["exact", "off"])),
        depth=draw(st.sampled_from([1, 2])),
        budget=draw(st.integers(4, 40)),
        drafts=draw(st.sampled_from([0, 3])),
        kv_memory=draw(st.sampled_from([TINY, AMPLE])),
        block_size=draw(st.sampled_from([1, 4, 16])),
    )
    lengths, said, runner = {}, {}, engine._runner
    for number in range(draw(st.integers(2, 7))):
        name = f"r{number}"
        lengths[name], said[name] = draw(st.integers(1, LONGEST - 20)), []
        engine.add(message(name, lengths[name], draw(st.sampled_from([None, "salt"]))))
        for _ in range(draw(st.integers(0, 15))):
            step(engine, said)
        match draw(st.sampled_from(["go on", "go on", "abort", "interrupt"])):
            case "abort":
                engine.abort(AbortRequest(request_id=name))
                del lengths[name]
            case "interrupt":
                part = draw(st.sampled_from(["submit", "sample", "settle"]))
                with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
                    patch.setattr(runner, part, _interrupted(getattr(runner, part)))
                    step(engine, said)
    while not engine.is_idle:
        step(engine, said)
    engine.scheduler.check()
    for name, length in lengths.items():
        assert said[name] == alone(length), name


def _interrupted(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, and then an interrupt: its work is done, and lost."""

    def interrupted(*args: Any) -> None:
        fn(*args)
        raise KeyboardInterrupt

    return interrupted

"""An engine from parts: depth, sizes and graphs as backend and settings want them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.backends.cpu import plugin
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.interface import KVSpec, ModelSpec
from isoinfer.config import SCHEDULING_POLICIES, CacheConfig, EngineConfig, SchedulerConfig
from isoinfer.engine.arena import Scratch
from isoinfer.engine.assembly import Parts, assemble_engine, depth_of, graph_config
from isoinfer.engine.builder import memory_of
from isoinfer.engine.engine import Engine
from isoinfer.engine.messages import AddRequest, CoreSampling
from isoinfer.engine.phase import Mixed, TwoPhase
from isoinfer.errors import UserError
from isoinfer.speculation.config import SpeculativeConfig

VOCAB, HIDDEN = 11, 4
BLOCK_BYTES = 2 * 2 * 4 * 16 * 4
"""K and V, KV heads, head dim, tokens of a block, bytes."""


def make_backend(*, graphs: bool = False) -> Any:
    (device,) = plugin.isoinfer_backend_probe()
    options = {"native": "off", "graphs": "on" if graphs else "off"}
    return plugin.isoinfer_backend_create(device, BackendConfig(dtype="float32", threads=1, options=options))


def says_of_itself(backend: Any, **capabilities: Any) -> Any:
    """As much of a backend as says what it can do, with other words."""
    return SimpleNamespace(name="other", capabilities=replace(backend.capabilities, **capabilities))


class CountsUp:
    """A model without layers: after token t comes t + 1."""

    def hidden(self, batch: Any, kv: Any) -> torch.Tensor:
        return batch.token_ids_T.float()[:, None].expand(-1, HIDDEN).contiguous()

    def logits(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        return -(torch.arange(VOCAB) - hidden_RH[:, :1] - 1).abs()


def spec_of(*windows: int | None) -> ModelSpec:
    groups = tuple(
        KVSpec(name=str(window), layers=(index,), num_kv_heads=2, head_dim=4, dtype="float32", window=window)
        for index, window in enumerate(windows)
    )
    return ModelSpec(
        architecture="CountsUp",
        num_layers=len(groups),
        hidden_size=HIDDEN,
        vocab_size=VOCAB,
        max_position=64,
        kv_specs=groups,
        flops_per_token=0,
        bytes_per_token=0,
        weight_bytes=0,
    )


def config_of(*, prefix_caching: bool = True, speculative: Any = None, eager: bool = False, **settings: Any) -> Any:
    return EngineConfig(
        model="none",
        scheduler=SchedulerConfig(**{"max_num_seqs": 2, "check_invariants": True, **settings}),
        cache=CacheConfig(kv_memory=40 * BLOCK_BYTES, enable_prefix_caching=prefix_caching),
        speculative=speculative,
        enforce_eager=eager,
    )


def assemble(*windows: int | None, backend: Any = None, **settings: Any) -> Engine:
    backend, spec, config = backend or make_backend(), spec_of(*(windows or (None,))), config_of(**settings)
    parts = Parts(backend=backend, spec=spec, forward=CountsUp(), bind=backend.bind)
    return assemble_engine(config, parts, memory_of(config, backend, spec))


def say(engine: Engine, *prompts: list[int], max_tokens: int = 4) -> list[list[int]]:
    """What each prompt is answered."""
    sampling = CoreSampling(max_tokens=max_tokens, seed=0, temperature=0.0)
    said: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    for name, prompt in zip(said, prompts, strict=True):
        ids = np.array(prompt, dtype=np.int32)
        engine.add(AddRequest(request_id=name, prompt_token_ids=ids, sampling=sampling))
    while not engine.is_idle:
        for update in engine.step():
            assert not update.error
            said[update.request_id] += update.token_ids
    return list(said.values())


NGRAM = SpeculativeConfig(method="ngram", num_drafts=2, min_match=1, max_match=3)
SUFFIX = SpeculativeConfig(method="suffix", num_drafts=2, min_match=1, max_match=3)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("speculative", [None, NGRAM, SUFFIX], ids=["plain", "ngram", "suffix"])
@pytest.mark.parametrize("windows", [(None,), (None, 20)], ids=str)
def test_an_engine_of_these_parts_answers(depth: int, speculative: Any, windows: tuple[int | None, ...]) -> None:
    engine = assemble(*windows, scheduling_depth=depth, speculative=speculative)
    answers = say(engine, [3], [9, 1], [2] * 20, [1, 2, 3, 4, 5, 1, 2, 3])
    assert answers == [[4, 5, 6, 7], [2, 3, 4, 5], [3, 4, 5, 6], [4, 5, 6, 7]]
    assert engine.scheduler.kv_usage == 0.0
    assert (engine.scheduler.stats.num_accepted_tokens > 0) == (speculative is not None)


def test_graphs_are_used_where_the_backend_has_them() -> None:
    engine = assemble(backend=make_backend(graphs=True), scheduling_depth=2)
    assert say(engine, [3], [9, 1]) == [[4, 5, 6, 7], [2, 3, 4, 5]]
    assert engine._runner._graphs is not None
    assert engine._runner._graphs._decodes


def test_the_depth_is_what_the_user_says_or_what_pays() -> None:
    backend = make_backend()
    pays, does_not = says_of_itself(backend, overlap_pays=True), says_of_itself(backend, overlap_pays=False)
    assert [depth_of(config_of(), one) for one in (pays, does_not)] == [2, 1]
    assert [depth_of(config_of(scheduling_depth=depth), pays) for depth in (1, 2)] == [1, 2]
    assert [depth_of(config_of(scheduling_depth=depth), does_not) for depth in (1, 2)] == [1, 2]


def test_depth_2_has_spare_slots_and_staging_buffers() -> None:
    for depth, slots in ((1, 4), (2, 5)):
        engine = assemble(scheduling_depth=depth, max_num_seqs=4)
        assert engine.scheduler.table.number_S.size == slots
        assert len(engine._runner._arena._ring) == depth + 1


def test_two_phase_is_the_only_policy_that_changes_the_kind_of_steps() -> None:
    kinds = {name: type(assemble(scheduling_policy=name).scheduler._phase) for name in SCHEDULING_POLICIES}
    assert kinds == {"fcfs": Mixed, "priority": Mixed, "lpm": Mixed, "two-phase": TwoPhase}


def test_prefix_caching_can_be_off() -> None:
    for prefix_caching, hits in ((True, 16), (False, 0)):
        engine = assemble(prefix_caching=prefix_caching)
        prompt = [index % VOCAB for index in range(20)]
        assert say(engine, prompt) == say(engine, prompt)
        assert engine.scheduler._kv.stats.hits == hits


def test_the_backend_learns_which_blocks_were_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, discarded = make_backend(), []
    monkeypatch.setattr(
        backend, "discard_blocks", lambda kv, group, blocks: discarded.append((group, blocks.tolist(), blocks.dtype))
    )
    say(assemble(None, 20, backend=backend, prefix_caching=False), [1] * 20, max_tokens=2)
    assert sorted(group for group, _, _ in discarded) == [0, 1]
    assert all(len(blocks) == 2 and dtype == np.int32 for _, blocks, dtype in discarded)


def test_graphs_are_as_many_as_the_largest_step_and_the_backend_allow() -> None:
    backend, spec = make_backend(graphs=True), spec_of(None, 20)
    config = config_of(max_num_seqs=12, max_num_batched_tokens=6)
    memory = memory_of(config, backend, spec)
    made = graph_config(config, backend, memory)
    assert made is not None
    assert (made.sizes, made.max_model_len) == ((1, 2, 4, 6), memory.max_model_len)
    assert made.scratch == Scratch(first_blocks=memory.num_blocks, num_blocks=1, block_size=16)
    few = graph_config(config, says_of_itself(backend, graph_limit=2), memory)
    assert few is not None
    assert few.sizes == (4, 6)


def test_no_graphs_where_user_backend_or_kv_say_no() -> None:
    backend, spec = make_backend(graphs=True), spec_of(None)
    config = config_of()
    memory = memory_of(config, backend, spec)
    assert graph_config(config, backend, memory) is not None
    assert graph_config(config_of(eager=True), backend, memory) is None
    assert graph_config(config, says_of_itself(backend, graph_limit=0), memory) is None
    assert graph_config(config, backend, replace(memory, num_scratch_blocks=0)) is None


def test_a_backend_gets_no_more_steps_in_flight_than_it_takes() -> None:
    one = says_of_itself(make_backend(), max_in_flight=1, overlap_pays=True)
    assert depth_of(EngineConfig(model=""), one) == 1
    asked = EngineConfig(model="", scheduler=SchedulerConfig(scheduling_depth=2))
    with pytest.raises(UserError, match="other takes 1 step in flight"):
        depth_of(asked, one)

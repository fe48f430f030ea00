"""Puts an engine together from a backend, a model that runs and a plan of the memory. Knows no checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from isoinfer.backends.ops import VERIFY_REJECTION, RejectionSpec
from isoinfer.config import EngineConfig
from isoinfer.engine.arena import ArenaSizes, Scratch
from isoinfer.engine.decode_graphs import GraphConfig, graph_sizes
from isoinfer.engine.engine import Engine
from isoinfer.engine.memory_plan import MemoryPlan
from isoinfer.engine.phase import Mixed, TwoPhase
from isoinfer.engine.policy import make_policy
from isoinfer.engine.runner import Runner, RunnerSpec
from isoinfer.engine.scheduler import Scheduler
from isoinfer.engine.slots import slots_for
from isoinfer.engine.verification import Verification
from isoinfer.errors import UserError
from isoinfer.kv.group_blocks import KVGroup
from isoinfer.kv.manager import KVManager
from isoinfer.kv.replay import replay_length
from isoinfer.speculation.config import SpeculativeConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isoinfer.backends.interface import Backend, Forward, KVCache, ModelSpec
    from isoinfer.layers.parts import Bind


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an engine is made of. `forward`: the model on `backend`; `bind`: what its ops were bound with."""

    backend: Backend
    spec: ModelSpec
    forward: Forward
    bind: Bind


def depth_of(config: EngineConfig, backend: Backend) -> int:
    """Steps in flight: what the user says, else two where the host's work hides behind the device's. UserError for
    more than the backend takes."""
    most = backend.capabilities.max_in_flight
    depth = config.scheduler.scheduling_depth or min(most, 2 if backend.capabilities.overlap_pays else 1)
    if depth > most:
        raise UserError(f"backend {backend.name} takes {most} step in flight; leave out --scheduling-depth {depth}")
    return depth


def assemble_engine(config: EngineConfig, parts: Parts, memory: MemoryPlan) -> Engine:
    """KV, runner and scheduler around a model. Allocates the KV."""
    kv = parts.backend.allocate_kv(parts.spec.kv_specs, memory.num_allocated)
    depth = depth_of(config, parts.backend)
    runner_spec = _runner_spec(config, parts, memory, depth)
    check = _verification(config, parts, memory, depth)
    return Engine(
        _scheduler(config, parts, memory, _manager(config, parts, memory, kv, depth), depth),
        Runner(parts.backend, parts.forward, kv, runner_spec, parts.bind, check),
        depth=depth,
        check_invariants=config.scheduler.check_invariants,
    )


def _manager(config: EngineConfig, parts: Parts, memory: MemoryPlan, kv: KVCache, depth: int) -> KVManager:
    groups = [
        KVGroup(name=spec.name, num_blocks=num_blocks, window=spec.window)
        for spec, num_blocks in zip(parts.spec.kv_specs[: len(memory.num_blocks)], memory.num_blocks, strict=True)
    ]
    settings, cache = config.scheduler, config.cache
    return KVManager(
        groups,
        block_size=memory.block_size,
        num_slots=slots_for(settings.max_num_seqs, depth),
        max_tokens=memory.max_model_len,
        step_tokens=depth * settings.max_num_batched_tokens,
        prefix_caching=cache.enable_prefix_caching
        and bool(groups)
        and not (memory.rings and cache.swa_replay == "off"),
        num_rings=len(memory.rings),
        replay=replay_length(parts.spec.kv_specs, cache.swa_replay or "exact"),
        verify_tokens=settings.check_invariants,
        on_discard=partial(_discard, parts.backend, kv),
    )


def _discard(backend: Backend, kv: KVCache, group: int, blocks: Sequence[int]) -> None:
    backend.discard_blocks(kv, group, np.array(blocks, dtype=np.int32))


def _verification(config: EngineConfig, parts: Parts, memory: MemoryPlan, depth: int) -> Verification | None:
    if config.speculative is None:
        return None
    _check_acceptance(config.speculative, parts)
    return Verification(
        parts.backend,
        parts.bind,
        config.speculative,
        depth=depth,
        num_slots=slots_for(config.scheduler.max_num_seqs, depth),
        max_model_len=memory.max_model_len,
        vocab_size=parts.spec.vocab_size,
    )


def _check_acceptance(speculative: SpeculativeConfig, parts: Parts) -> None:
    """A backend that promises equal bits has to keep that with the classical rule too."""
    if speculative.accept == "coupled" or not parts.backend.capabilities.bitwise_deterministic:
        return
    static = RejectionSpec(num_drafts=speculative.num_drafts, vocab_size=parts.spec.vocab_size)
    support = parts.backend.support(VERIFY_REJECTION, static)
    if not support.batch_invariant:
        raise UserError(
            f"--deterministic: {support.provider} {VERIFY_REJECTION.name} on {parts.backend.name} is not "
            "batch-invariant; take --spec-accept coupled"
        )


def _scheduler(config: EngineConfig, parts: Parts, memory: MemoryPlan, kv: KVManager, depth: int) -> Scheduler:
    settings = config.scheduler
    return Scheduler(
        settings,
        kv=kv,
        policy=make_policy(settings.scheduling_policy),
        phase=TwoPhase() if settings.scheduling_policy == "two-phase" else Mixed(),
        num_slots=slots_for(settings.max_num_seqs, depth),
        vocab_size=parts.spec.vocab_size,
        max_model_len=memory.max_model_len,
        depth=depth,
        speculative=config.speculative,
    )


def _runner_spec(config: EngineConfig, parts: Parts, memory: MemoryPlan, depth: int) -> RunnerSpec:
    settings = config.scheduler
    return RunnerSpec(
        sizes=ArenaSizes(
            max_tokens=settings.max_num_batched_tokens,
            max_rows=settings.max_num_seqs,
            max_blocks=-(-memory.max_model_len // memory.block_size),
            num_groups=len(memory.num_blocks),
            depth=depth,
            rings=memory.rings,
            scratch_ring=slots_for(settings.max_num_seqs, depth),
        ),
        block_size=memory.block_size,
        vocab_size=parts.spec.vocab_size,
        hidden_size=parts.spec.hidden_size,
        dtype=parts.backend.capabilities.default_dtype,
        num_drafts=0 if config.speculative is None else config.speculative.num_drafts,
        graphs=graph_config(config, parts.backend, memory),
    )


def graph_config(config: EngineConfig, backend: Backend, memory: MemoryPlan) -> GraphConfig | None:
    """Which decode steps run as graphs. None where the user or the backend does not want any."""
    limit = backend.capabilities.graph_limit
    if config.enforce_eager or limit < 1 or memory.num_scratch_blocks < 1:
        return None
    settings = config.scheduler
    return GraphConfig(
        sizes=graph_sizes(min(settings.max_num_seqs, settings.max_num_batched_tokens), limit),
        scratch=Scratch(
            first_blocks=memory.num_blocks, num_blocks=memory.num_scratch_blocks, block_size=memory.block_size
        ),
        max_model_len=memory.max_model_len,
    )

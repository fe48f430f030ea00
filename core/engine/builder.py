"""Makes an engine from its settings: checkpoint, model, backend, weights, memory plan, and then the assembly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from isoinfer.backends.registry import Registry
from isoinfer.config import EngineConfig
from isoinfer.engine.assembly import Parts, assemble_engine, depth_of, graph_config
from isoinfer.engine.engine import Engine
from isoinfer.engine.explain import BindRecorder
from isoinfer.engine.memory_plan import MemoryPlan, plan_memory
from isoinfer.errors import UserError
from isoinfer.models.registry import resolve
from isoinfer.weights.loader import load_weights
from isoinfer.weights.open import open_checkpoint

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend, Forward, ModelSpec
    from isoinfer.models.model import Model
    from isoinfer.weights.checkpoint import Checkpoint

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """A running core and what the front end must know about it."""

    engine: Engine
    checkpoint: Checkpoint
    vocab_size: int
    max_model_len: int
    block_size: int
    description: tuple[str, ...]
    recorder: BindRecorder


def build_engine(config: EngineConfig, progress: Progress | None = None) -> BuiltEngine:
    """Load and start. `progress(done, total)` counts weights. Raises UserErrors that say what to do."""
    checkpoint = open_checkpoint(config.model)
    model = _model(config, checkpoint)
    backend = make_backend(config)
    _check_rings(config, backend)
    _check_quantization(config.quantization, backend)
    num_drafts = 0 if config.speculative is None else config.speculative.num_drafts
    spec = model.costs(backend.capabilities.default_dtype, num_drafts)
    memory = memory_of(config, backend, spec)
    recorder = BindRecorder(backend)
    forward = backend.bind_model(spec) or _load_model(config, checkpoint, model, recorder, backend, memory, progress)
    parts = Parts(backend=backend, spec=spec, forward=forward, bind=recorder.bind)
    return BuiltEngine(
        engine=assemble_engine(config, parts, memory),
        checkpoint=checkpoint,
        vocab_size=spec.vocab_size,
        max_model_len=memory.max_model_len,
        block_size=memory.block_size,
        description=(*describe(config, backend, spec, memory), *recorder.fallbacks()),
        recorder=recorder,
    )


def _model(config: EngineConfig, checkpoint: Checkpoint) -> Model:
    model = resolve(checkpoint.config)
    if config.cache.window_kv == "ring":
        return model.with_rings()
    if config.cache.swa_replay is not None:
        raise UserError("swa_replay (--swa-replay) is for rings; give window_kv=ring (--window-kv ring) too")
    return model


def _check_rings(config: EngineConfig, backend: Backend) -> None:
    if config.cache.window_kv == "ring" and not backend.capabilities.rings:
        raise UserError(f"backend {backend.name} has no rings; leave window_kv (--window-kv) at paged")


def make_backend(config: EngineConfig) -> Backend:
    """The backend that the settings name, or the one they hold."""
    if not isinstance(config.backend, str):
        return config.backend
    registry = Registry.load()
    return registry.create(registry.select(config.backend), config.backend_config)


def memory_of(config: EngineConfig, backend: Backend, spec: ModelSpec) -> MemoryPlan:
    """How much KV there is for this model on this backend."""
    layout, depth = backend.kv_layout(spec.kv_specs), depth_of(config, backend)
    return plan_memory(config, layout, backend.memory(), spec.max_position, spec.kv_specs, depth)


def _check_quantization(quantization: str | None, backend: Backend) -> None:
    known = backend.capabilities.quantizations
    if quantization is not None and quantization not in known:
        raise UserError(
            f"backend {backend.name} has no quantization {quantization!r}; it has {', '.join(known) or 'none'}"
        )


def _load_model(
    config: EngineConfig,
    checkpoint: Checkpoint,
    model: Model,
    recorder: BindRecorder,
    backend: Backend,
    memory: MemoryPlan,
    progress: Progress | None,
) -> Forward:
    dtype, quant = backend.capabilities.default_dtype, config.quantization
    weights = load_weights(
        checkpoint,
        model.weight_rules(),
        backend.prepare_weight,
        getattr(torch, dtype),
        quant,
        progress,
        model.ignored_tensors(),
    )

    def place(tensor: torch.Tensor) -> torch.Tensor:
        placed, stream, done = backend.empty(tensor.shape, tensor.dtype), backend.stream(), backend.event()
        backend.to_device(placed, tensor, stream)
        done.record(stream)
        done.synchronize()  # unlike the stream's, it raises if the copy failed
        return placed

    return model.build(recorder.bind, weights, dtype, memory.block_size, memory.max_model_len, place, quant)


def describe(config: EngineConfig, backend: Backend, spec: ModelSpec, memory: MemoryPlan) -> tuple[str, ...]:
    """What was chosen, one line each."""
    quant = f", weights {config.quantization}" if config.quantization else ""
    weights = spec.flops_per_token / 2e6
    line = f"model: {spec.architecture}, {spec.num_layers} layers, {weights:.0f} M weights a token"
    dtype = backend.capabilities.default_dtype
    return (
        f"{line}, {dtype}{quant}",
        *backend.describe(),
        *memory.describe(),
        _describe_scheduling(config, backend),
        *_describe_graphs(config, backend, memory),
    )


def _describe_scheduling(config: EngineConfig, backend: Backend) -> str:
    depth = depth_of(config, backend)
    ahead = "each step settles before the next" if depth == 1 else "the host works one step ahead of the device"
    cache = "on" if config.cache.enable_prefix_caching else "off"
    line = f"scheduling: {config.scheduler.scheduling_policy}, depth {depth} ({ahead}); prefix cache {cache}"
    return line if config.speculative is None else f"{line}; {config.speculative.describe()}"


def _describe_graphs(config: EngineConfig, backend: Backend, memory: MemoryPlan) -> list[str]:
    if backend.capabilities.graph_limit < 1:
        return []
    if (graphs := graph_config(config, backend, memory)) is None:
        why = "enforce_eager" if config.enforce_eager else "the backend's KV has no scratch block for padding rows"
        return [f"graphs: off ({why})"]
    return [f"graphs: decode steps in {len(graphs.sizes)} sizes up to {graphs.sizes[-1]} rows, captured at first use"]

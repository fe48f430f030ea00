"""Makes an engine from its settings: checkpoint, model, backend, weights, KV, runner, scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from isoinfer.backends.registry import Registry
from isoinfer.config import EngineConfig
from isoinfer.engine.arena import Scratch
from isoinfer.engine.decode_graphs import GraphConfig, graph_sizes
from isoinfer.engine.engine import Engine
from isoinfer.engine.explain import BindRecorder
from isoinfer.engine.memory_plan import MemoryPlan, plan_memory
from isoinfer.engine.runner import Runner, RunnerLimits
from isoinfer.engine.scheduler import Scheduler
from isoinfer.errors import UserError
from isoinfer.kv.manager import KVManager
from isoinfer.models.registry import resolve
from isoinfer.weights.loader import load_weights
from isoinfer.weights.open import open_checkpoint

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend
    from isoinfer.models.model import Forward, Model
    from isoinfer.weights.checkpoint import Checkpoint

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """A running core and what the front end must know about it."""

    engine: Engine
    checkpoint: Checkpoint
    vocab_size: int
    max_model_len: int
    description: tuple[str, ...]
    recorder: BindRecorder


def build_engine(config: EngineConfig, progress: Progress | None = None) -> BuiltEngine:
    """Load and start. `progress(done, total)` counts weights. Raises UserErrors that say what to do."""
    checkpoint = open_checkpoint(config.model)
    model = resolve(checkpoint.config)
    backend = _backend(config)
    dtype = backend.capabilities.default_dtype
    _check_quantization(config.quantization, backend)
    memory = _plan_kv(config, backend, model, dtype)
    recorder = BindRecorder(backend)
    forward = _load_model(config, checkpoint, model, recorder, backend, memory, progress)
    runner, scheduler = _start(config, backend, model, forward, memory, recorder)
    return BuiltEngine(
        engine=Engine(scheduler, runner),
        checkpoint=checkpoint,
        vocab_size=model.config.vocab_size,
        max_model_len=memory.max_model_len,
        description=(*_describe(config, backend, model, dtype, memory), *recorder.fallbacks()),
        recorder=recorder,
    )


def _backend(config: EngineConfig) -> Backend:
    if not isinstance(config.backend, str):
        return config.backend
    registry = Registry.load()
    return registry.create(registry.select(config.backend), config.backend_config)


def _check_quantization(quantization: str | None, backend: Backend) -> None:
    known = backend.capabilities.quantizations
    if quantization is not None and quantization not in known:
        raise UserError(
            f"backend {backend.name} has no quantization {quantization!r}; it has {', '.join(known) or 'none'}"
        )


def _plan_kv(config: EngineConfig, backend: Backend, model: Model, dtype: str) -> MemoryPlan:
    layout = backend.kv_layout(model.kv_specs(dtype))
    return plan_memory(config, layout, backend.memory(), model.config.max_position)


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


def _start(
    config: EngineConfig,
    backend: Backend,
    model: Model,
    forward: Forward,
    memory: MemoryPlan,
    recorder: BindRecorder,
) -> tuple[Runner, Scheduler]:
    settings = config.scheduler
    dtype = backend.capabilities.default_dtype
    manager = KVManager(
        num_blocks=memory.num_blocks,
        block_size=memory.block_size,
        num_slots=settings.max_num_seqs,
        max_model_len=memory.max_model_len,
    )
    runner = Runner(
        backend,
        forward,
        backend.allocate_kv(model.kv_specs(dtype), memory.num_allocated),
        bind=recorder.bind,
        limits=RunnerLimits(
            max_tokens=settings.max_num_batched_tokens,
            max_rows=settings.max_num_seqs,
            max_blocks=manager.blocks_for(memory.max_model_len),
        ),
        block_size=memory.block_size,
        vocab_size=model.config.vocab_size,
        hidden_size=model.config.hidden_size,
        dtype=dtype,
        graphs=_graphs(config, backend, memory),
    )
    scheduler = Scheduler(settings, kv=manager, vocab_size=model.config.vocab_size, max_model_len=memory.max_model_len)
    return runner, scheduler


def _graphs(config: EngineConfig, backend: Backend, memory: MemoryPlan) -> GraphConfig | None:
    """Which decode steps run as graphs. None where the user or the backend does not want any."""
    limit = backend.capabilities.graph_limit
    if config.enforce_eager or limit < 1 or memory.num_scratch_blocks < 1:
        return None
    settings = config.scheduler
    return GraphConfig(
        sizes=graph_sizes(min(settings.max_num_seqs, settings.max_num_batched_tokens), limit),
        scratch=Scratch(
            first_block=memory.num_blocks, num_blocks=memory.num_scratch_blocks, block_size=memory.block_size
        ),
        max_model_len=memory.max_model_len,
    )


def _describe_graphs(config: EngineConfig, backend: Backend, memory: MemoryPlan) -> list[str]:
    if backend.capabilities.graph_limit < 1:
        return []
    if (graphs := _graphs(config, backend, memory)) is None:
        why = "enforce_eager" if config.enforce_eager else "the backend's KV has no scratch block for padding rows"
        return [f"graphs: off ({why})"]
    return [f"graphs: decode steps in {len(graphs.sizes)} sizes up to {graphs.sizes[-1]} rows, captured at first use"]


def _describe(config: EngineConfig, backend: Backend, model: Model, dtype: str, memory: MemoryPlan) -> tuple[str, ...]:
    parameters: Any = model.costs(dtype).flops_per_token / 2e6
    quant = f", weights {config.quantization}" if config.quantization else ""
    line = f"model: {model.config.architecture}, {model.config.num_layers} layers, {parameters:.0f} M weights a token"
    graphs = _describe_graphs(config, backend, memory)
    return (f"{line}, {dtype}{quant}", *backend.describe(), memory.describe(), *graphs)

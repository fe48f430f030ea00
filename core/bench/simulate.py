"""An engine for a named model on a simulated device: how many chips, how much KV, and what drives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.registry import create_backend
from isoinfer.backends.simulated import Simulated
from isoinfer.engine.assembly import Parts, assemble_engine
from isoinfer.engine.builder import memory_of
from isoinfer.errors import UserError
from isoinfer.models.named_specs import NAMED_MODELS, NamedModel

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend
    from isoinfer.config import EngineConfig
    from isoinfer.engine.engine import Engine

VOCAB_SIZE = 1024
"""Of the simulated tokens. The model's own would only make the simulation slow; its costs count as they are."""
BLOCK_SIZE = 64
WEIGHTS_SHARE = 0.8
"""The most of the chips' memory that weights may take where the number of chips is ours to choose."""
COUNTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedEngine:
    """`device` knows its times; `count` chips share the model; `description` in lines."""

    engine: Engine
    device: Simulated
    count: int
    vocab_size: int
    description: tuple[str, ...]


def named_model(name: str) -> NamedModel:
    """The model called `name`. UserError with all names if there is none."""
    if name not in NAMED_MODELS:
        raise UserError(f"there is no model {name!r} to simulate; there are {', '.join(NAMED_MODELS)}")
    return NAMED_MODELS[name]()


def simulated_engine(
    config: EngineConfig, model: NamedModel, *, count: int | None, options: Mapping[str, str]
) -> SimulatedEngine:
    """Create the backend that `config` names, which must be a simulated one, and an engine on it.

    `count`: chips, None = as few as hold the weights. UserError, with numbers, where they do not.
    """
    assert isinstance(config.backend, str)
    count = count or _count(config.backend, model)
    backend, device = _device(config.backend, {"bits": str(model.bits), **options, "count": str(count)})
    room = backend.memory().total - model.resident_bytes - config.scheduler.max_num_seqs * model.state_bytes
    if room <= 0:
        raise UserError(
            f"{count} x {config.backend} have {backend.memory().total / 1e9:.0f} GB, but the weights are "
            f"{model.resident_bytes / 1e9:.0f} GB; take more with --sim-devices"
        )
    share = backend.memory().kv_default / backend.memory().total
    cache = replace(config.cache, kv_memory=config.cache.kv_memory or int(share * room))
    config = replace(config, cache=cache)
    spec = replace(model.spec, vocab_size=VOCAB_SIZE)
    memory = memory_of(config, backend, spec)
    parts = Parts(backend=backend, spec=spec, forward=_forward(backend, spec), bind=backend.bind)
    return SimulatedEngine(
        engine=assemble_engine(config, parts, memory),
        device=device,
        count=count,
        vocab_size=VOCAB_SIZE,
        description=(*backend.describe(), *memory.describe()),
    )

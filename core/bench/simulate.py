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
    """`count` chips share the model. `description` in lines."""

    engine: Engine
    backend: Backend
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
    chip = _chip(config.backend)
    count = count or _count(chip, model)
    given = {"block_size": str(BLOCK_SIZE), "bits": str(model.bits), **options, "count": str(count)}
    backend = create_backend(config.backend, BackendConfig(options=given))
    room = backend.memory().total - model.resident_bytes - config.scheduler.max_num_seqs * model.state_bytes
    if room <= 0:
        raise UserError(
            f"{count} x {config.backend} have {backend.memory().total / 1e9:.0f} GB, but the weights are "
            f"{model.resident_bytes / 1e9:.0f} GB; take more with --sim-devices"
        )
    share = backend.memory().kv_default / backend.memory().total
    config = replace(config, cache=replace(config.cache, kv_memory=config.cache.kv_memory or int(share * room)))
    spec = replace(model.spec, vocab_size=VOCAB_SIZE)
    memory, forward = memory_of(config, backend, spec), backend.bind_model(spec)
    assert forward is not None, "a simulated backend runs whole models"
    parts = Parts(backend=backend, spec=spec, forward=forward, bind=backend.bind)
    return SimulatedEngine(
        engine=assemble_engine(config, parts, memory),
        backend=backend,
        count=count,
        vocab_size=VOCAB_SIZE,
        description=(*backend.describe(), *memory.describe()),
    )


def _count(chip: Backend, model: NamedModel) -> int:
    per_chip = WEIGHTS_SHARE * chip.memory().total
    return next((count for count in COUNTS if count * per_chip >= model.resident_bytes), COUNTS[-1])


def _chip(spec: str) -> Backend:
    """One of the chips. UserError if it is a real one."""
    backend = create_backend(spec, BackendConfig())
    if not isinstance(backend, Simulated):
        raise UserError(
            f"--sim-model plans on a simulated device, and {spec!r} is a real one; take a device that "
            "`isoinfer backends` calls simulated, or give the real one a checkpoint with -m"
        )
    return backend

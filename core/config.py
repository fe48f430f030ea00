"""The engine's settings, one frozen dataclass per subsystem; nobody receives more than its own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING

from isoinfer.backends.descriptor import BackendConfig
from isoinfer.errors import UserError

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend

FALLBACKS = ("composed", "fail", "reference")
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("kmgt", start=1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """`kv_memory`: bytes for KV, None = what the backend suggests."""

    kv_memory: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """`max_num_seqs`: requests that run at once. `max_num_batched_tokens`: tokens computed in one step."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything that makes an engine. `max_model_len`: None = the model's own limit, as far as KV allows.

    `enforce_eager`: no captured graphs, even where the backend has them.
    """

    model: str
    backend: str | Backend = "auto"
    backend_config: BackendConfig = field(default_factory=BackendConfig)
    quantization: str | None = None
    max_model_len: int | None = None
    enforce_eager: bool = False
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)

    def __post_init__(self) -> None:
        if self.backend_config.fallback not in FALLBACKS:
            raise UserError(f"fallback must be one of {', '.join(FALLBACKS)}, got {self.backend_config.fallback!r}")


def parse_bytes(text: str | int) -> int:
    """Bytes from `4GiB`, `512M`, `1e9` or a plain number. UserError with examples otherwise."""
    if isinstance(text, int):
        size = text
    else:
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([kmgt]i?)?b?\s*", text.lower())
        if match is None or not isfinite(float(match[1])):
            raise UserError(f"cannot read {text!r} as an amount of memory; write for example 4GiB, 512MiB or 2G")
        size = int(float(match[1]) * UNITS[match[2] or ""])
    if size <= 0:
        raise UserError(f"an amount of memory must be positive, got {text!r}")
    return size

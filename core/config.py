"""The engine's settings, one frozen dataclass per subsystem; nobody receives more than its own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING

from isoinfer.backends.descriptor import BackendConfig
from isoinfer.errors import UserError
from isoinfer.kv.replay import REPLAYS
from isoinfer.speculation.config import SpeculativeConfig

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend

FALLBACKS = ("composed", "fail", "reference")
WINDOW_KV = ("paged", "ring")
SCHEDULING_POLICIES = ("fcfs", "priority", "lpm", "two-phase")
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("kmgt", start=1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """`kv_memory`: bytes for KV, None = what the backend suggests. `enable_prefix_caching`: KV of finished and
    running requests serves later ones that begin alike. `window_kv`: whether layers with a window keep theirs in blocks
    (paged) or, a constant amount for each running request, in rings (ring). `swa_replay`: how rings are made good after
    a hit: exact, bounded or off; None = exact."""

    kv_memory: int | None = None
    enable_prefix_caching: bool = True
    window_kv: str = "paged"
    swa_replay: str | None = None

    def __post_init__(self) -> None:
        if self.window_kv not in WINDOW_KV:
            raise UserError(f"window_kv must be one of {', '.join(WINDOW_KV)}, got {self.window_kv!r}")
        if self.swa_replay not in (None, *REPLAYS):
            raise UserError(f"swa_replay must be one of {', '.join(REPLAYS)}, got {self.swa_replay!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How steps are filled.

    `max_num_seqs`: requests that run at once. `max_num_batched_tokens`: tokens computed in one step.
    `scheduling_policy`: fcfs, priority, lpm (longest cached prefix) or two-phase (a step is prefill or decode).
    `scheduling_depth`: steps in flight, 1 or 2; None = what pays on the backend. `long_prefill_token_threshold`:
    the most prompt tokens of a request in a step that also decodes, 0 = no limit. `check_invariants`: assert the
    scheduler's invariants in every step, slowly.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    scheduling_policy: str = "fcfs"
    scheduling_depth: int | None = None
    long_prefill_token_threshold: int = 0
    check_invariants: bool = False

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.scheduling_policy not in SCHEDULING_POLICIES:
            known = ", ".join(SCHEDULING_POLICIES)
            raise UserError(f"there is no scheduling policy {self.scheduling_policy!r}; choose one of {known}")
        if self.scheduling_depth not in (None, 1, 2):
            raise UserError(f"scheduling_depth must be 1 or 2, got {self.scheduling_depth}")
        if self.long_prefill_token_threshold < 0:
            raise UserError(f"long_prefill_token_threshold cannot be negative, got {self.long_prefill_token_threshold}")

    def chunk(self, need: int, budget: int, with_decodes: bool) -> int:
        """How many of `need` prompt tokens a step with `budget` tokens left computes."""
        limit = self.long_prefill_token_threshold
        return min(need, budget, limit) if limit and with_decodes else min(need, budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything that makes an engine. `max_model_len`: None = the model's own limit, as far as KV allows.

    `enforce_eager`: no captured graphs, even where the backend has them. `speculative`: drafts to be verified.
    """

    model: str
    backend: str | Backend = "auto"
    backend_config: BackendConfig = field(default_factory=BackendConfig)
    quantization: str | None = None
    max_model_len: int | None = None
    enforce_eager: bool = False
    speculative: SpeculativeConfig | None = None
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

"""The engine's settings from the options of a command, for commands that need no front end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isoinfer.cli.options import EngineOptions
    from isoinfer.config import EngineConfig


def engine_config(
    model: str, engine: EngineOptions, *, backend_options: Mapping[str, str], max_model_len: int | None
) -> EngineConfig:
    """`max_model_len`: where the user says none."""
    from isoinfer.backends.descriptor import BackendConfig
    from isoinfer.config import CacheConfig, EngineConfig, SchedulerConfig, parse_bytes
    from isoinfer.speculation.config import parse_speculative

    return EngineConfig(
        model=model,
        backend=engine.backend,
        backend_config=BackendConfig(
            dtype=engine.dtype,
            deterministic=engine.deterministic,
            fallback=engine.fallback,
            threads=engine.threads,
            options=dict(backend_options),
        ),
        quantization=engine.quantization,
        max_model_len=engine.max_model_len or max_model_len,
        enforce_eager=engine.enforce_eager,
        speculative=None if engine.speculative is None else parse_speculative(engine.speculative, engine.spec_accept),
        cache=CacheConfig(
            kv_memory=None if engine.kv_memory is None else parse_bytes(engine.kv_memory),
            enable_prefix_caching=engine.enable_prefix_caching,
            window_kv=engine.window_kv,
            swa_replay=engine.swa_replay,
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            scheduling_policy=engine.scheduling_policy,
            scheduling_depth=engine.scheduling_depth,
            long_prefill_token_threshold=engine.long_prefill_token_threshold,
            check_invariants=engine.check_invariants,
        ),
    )

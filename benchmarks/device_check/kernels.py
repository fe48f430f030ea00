"""Each kernel's time beside what the device can do at best (measured ceilings) and beside torch on the same work.

Suffixes: T tokens, H hidden, N query heads, K KV heads, D head dim, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from timing import seconds_each

from isoinfer.backends.interface import AttentionBatch, KVSpec
from isoinfer.backends.ops import (
    ADD_RMS_NORM,
    ARGMAX,
    PAGED_ATTENTION,
    RMS_NORM,
    SAMPLE,
    SILU_MUL,
    ActivationSpec,
    AttentionSpec,
    LogitsSpec,
    NormSpec,
    bind_reference,
    dtype_name,
)

N, K, D, H, INTERMEDIATE = 32, 8, 128, 4096, 14336


@dataclass(frozen=True, kw_only=True)
class Work:
    """One kernel on one shape: how many bytes it must move, how many operations it must do."""

    name: str
    run: Callable[[], Any]
    bytes_moved: int
    flops: int = 0
    maybe_torch: Callable[[], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """What was measured: bytes/s of a large copy, operations/s of a large matrix product."""

    bytes_per_s: float
    flops_per_s: float


def measure_ceilings(backend: Any, stream: Any, dtype: torch.dtype, *, small: bool) -> Ceilings:
    """A copy that no cache holds and a square matrix product."""
    size, side = ((1 << 20), 256) if small else ((1 << 30), 8192)
    source, target = (backend.empty((size,), torch.uint8) for _ in range(2))
    copy = seconds_each(backend, stream, lambda: target.copy_(source), launches=10)
    a, b = (_random(backend, (side, side), dtype) for _ in range(2))
    product = seconds_each(backend, stream, lambda: a @ b, launches=10)
    return Ceilings(bytes_per_s=2 * size / copy, flops_per_s=2 * side**3 / product)


def _random(backend: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    tensor: torch.Tensor = backend.empty(shape, dtype)
    return tensor.copy_(torch.randn(shape))


def works(backend: Any, stream: Any, dtype: torch.dtype, *, small: bool) -> list[Work]:
    """The shapes of an 8-billion-parameter Llama in decode and prefill, or small ones."""
    tokens, rows, context, prompt = (8, 2, 130, 70) if small else (4096, 64, 4096, 4096)
    hidden, wide, vocab = (256, 512, 1024) if small else (H, INTERMEDIATE, 128_256)
    return [
        *_row_works(backend, dtype, tokens, hidden, wide),
        _attention(backend, stream, dtype, "decode", rows, 1, context),
        _attention(backend, stream, dtype, "prefill", 1, prompt, prompt),
        *_sampling(backend, rows, vocab),
    ]


def _row_works(backend: Any, dtype: torch.dtype, tokens: int, hidden: int, wide: int) -> list[Work]:
    norm = NormSpec(hidden_size=hidden, eps=1e-5, dtype=dtype_name(dtype))
    act = ActivationSpec(intermediate_size=wide, dtype=dtype_name(dtype))
    x, residual = (_random(backend, (tokens, hidden), dtype) for _ in range(2))
    weight, gate_up = _random(backend, (hidden,), dtype), _random(backend, (tokens, 2 * wide), dtype)
    size = dtype.itemsize
    cases = (
        (RMS_NORM, norm, (x, weight), 2 * tokens * hidden * size),
        (ADD_RMS_NORM, norm, (x, residual, weight), 4 * tokens * hidden * size),
        (SILU_MUL, act, (gate_up,), 3 * tokens * wide * size),
    )
    return [_of(backend, op, static, args, moved) for op, static, args, moved in cases]


def _of(backend: Any, op: Any, static: Any, args: tuple[Any, ...], moved: int) -> Work:
    ours, reference = backend.bind(op, static), bind_reference(op, static)
    return Work(name=op.name, run=lambda: ours(*args), bytes_moved=moved, maybe_torch=lambda: reference(*args))


def _attention(backend: Any, stream: Any, dtype: torch.dtype, name: str, rows: int, queries: int, length: int) -> Work:
    spec = AttentionSpec(
        num_heads=N,
        num_kv_heads=K,
        head_dim=D,
        scale=D**-0.5,
        block_size=backend.kv_layout([_kv_spec(dtype)]).block_size,
        window=None,
        softcap=None,
        has_sinks=False,
        dtype=dtype_name(dtype),
    )
    blocks = -(-length // spec.block_size)
    cache = backend.allocate_kv([_kv_spec(dtype)], [rows * blocks])
    table = torch.randperm(rows * blocks, generator=torch.Generator().manual_seed(1)).view(rows, blocks).to(torch.int32)
    length_R = torch.full((rows,), length, dtype=torch.int32)
    placed = [backend.empty(t.shape, t.dtype).copy_(t) for t in (length_R, table)]
    batch = AttentionBatch(
        query_len_R=np.full(rows, queries, dtype=np.int32),
        kv_len_upper_R=length_R.numpy(),
        kv_len_device_R=placed[0],
        block_table_RB=placed[1],
        block_size=spec.block_size,
        maybe_kv_len_host_R=length_R.numpy(),
    )
    attention, plan = backend.bind(PAGED_ATTENTION, spec), backend.plan_attention(batch, stream)
    q_TND = _random(backend, (rows * queries, N, D), dtype)
    out_TND, layer = torch.empty_like(q_TND), cache.layer(0)
    pairs = rows * (length if queries == 1 else queries * (queries + 1) // 2)
    return Work(
        name=f"paged_attention {name}",
        run=lambda: attention(q_TND, layer, plan, None, out_TND),
        bytes_moved=(2 * rows * length * K + 2 * rows * queries * N) * D * dtype.itemsize,
        flops=4 * pairs * N * D,
        maybe_torch=_dense(backend, q_TND, rows, queries, length),
    )


def _dense(backend: Any, q_TND: torch.Tensor, rows: int, queries: int, length: int) -> Callable[[], Any]:
    """torch's own attention on the same shape with dense KV."""
    q_RNQD = q_TND.view(rows, queries, N, D).transpose(1, 2)
    k, v = (_random(backend, (rows, K, length, D), q_TND.dtype) for _ in range(2))

    def run() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q_RNQD, k, v, is_causal=queries > 1, enable_gqa=True)

    return run


def _kv_spec(dtype: torch.dtype) -> KVSpec:
    return KVSpec(name="full", layers=(0,), num_kv_heads=K, head_dim=D, dtype=dtype_name(dtype))


def _sampling(backend: Any, rows: int, vocab: int) -> list[Work]:
    static, moved = LogitsSpec(vocab_size=vocab), rows * vocab * 4
    logits = _random(backend, (rows, vocab), torch.float32)
    host = (
        torch.full((rows,), 0.8),
        torch.full((rows,), 50, dtype=torch.int32),
        torch.full((rows,), 0.9),
        torch.zeros(rows),
        torch.arange(rows),
        torch.arange(rows, dtype=torch.int32),
    )
    choice = tuple(backend.empty(t.shape, t.dtype).copy_(t) for t in host)
    return [
        _of(backend, ARGMAX, static, (logits,), moved),
        _of(backend, SAMPLE, static, (logits, *choice), moved),
    ]


def measure(backend: Any, stream: Any, work: Work, ceilings: Ceilings, *, launches: int) -> dict[str, Any]:
    """Microseconds, share of the roofline, and torch's time over ours."""
    ours = seconds_each(backend, stream, work.run, launches=launches)
    best = max(work.bytes_moved / ceilings.bytes_per_s, work.flops / ceilings.flops_per_s)
    row = {"kernel": work.name, "us": ours * 1e6, "of_roofline": best / ours}
    if work.maybe_torch is not None:
        row["torch_over_ours"] = seconds_each(backend, stream, work.maybe_torch, launches=launches) / ours
    return row

"""Attention over paged KV, flash style on the cube cores: one launch and one form for decode and for chunks.

A work item is, for a row with one query, a KV head with all query heads that share it, so that keys are read
once; for the others a tile of queries of one head. Either way the rows of the products lie at one stride. Cores
walk over the rows, counting items, and take every num_cores-th: lengths are read on the device, so a captured
graph replays with others. Scores of hidden keys are a large negative number rather than -inf: what they add is
multiplied by zero once a query meets a key that it sees, which is its own at the latest.

A query's bits depend on its own keys only, not on the batch nor on how a prompt is cut: every item is the same
code on tiles of the same sizes, tiles of keys start at the same places for every query, and one that is hidden
from a query adds zero.

Suffixes: M queries of a head, or heads of a query; D head dim (padded), S keys of a tile, T tokens, N query heads,
K KV heads, R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.ascend.plan import AscendAttentionPlan
from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import AttentionSpec, CanonicalKV

DTYPES = ("bfloat16", "float16", "float32")
NO_WINDOW = 1 << 30
MAX_HEAD_DIM, MAX_GROUP = 256, 64
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
HIDDEN: tl.constexpr = tl.constexpr(-1e30)
"""The score of a key that a query does not see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionDesc:
    """What a configuration depends on."""

    head_dim: int
    block_size: int
    softcap: bool
    sinks: bool
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Products of `block_m` rows, padded dims, and `block_s` keys, which lie in one KV block."""

    block_m: int
    block_d: int
    block_s: int


def pick_config(desc: AttentionDesc) -> AttentionConfig:
    """64 by 64: room for every group of heads, and what fits every chip's buffers at the largest head dim."""
    block_s = 64
    while desc.block_size % block_s:
        block_s //= 2
    return AttentionConfig(block_m=MAX_GROUP, block_d=max(64, triton.next_power_of_2(desc.head_dim)), block_s=block_s)


def descriptions() -> Iterator[AttentionDesc]:
    """One description for every configuration that `pick_config` can return with the backend's block of 128.

    The options do not change a configuration: each is listed on its own, at the head dims of models that have it.
    """
    plain, softcap, sinks = (False, False), (True, False), (False, True)
    options = {64: (plain, sinks), 128: (plain, softcap, sinks), 256: (plain, softcap)}
    for dtype in DTYPES:
        for head_dim, listed in options.items():
            for has_softcap, has_sinks in listed:
                yield AttentionDesc(
                    head_dim=head_dim, block_size=128, softcap=has_softcap, sinks=has_sinks, dtype=dtype
                )


@triton.jit
def scaled_scores(s_MS, scale, softcap, SOFTCAP: tl.constexpr):
    """Scores in units of log2."""
    s_MS = s_MS * scale
    if SOFTCAP:
        x_MS = tl.minimum(tl.maximum(s_MS / softcap, -20.0), 20.0)
        s_MS = softcap * (1.0 - 2.0 / (tl.exp(2.0 * x_MS) + 1.0))
    return s_MS * LOG2_E


@triton.jit(do_not_specialize=["num_rows", "q_stride", "table_stride", "num_kv_heads", "group", "head_dim", "window"])
def paged_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    q_start_ptr,
    q_len_ptr,
    kv_len_ptr,
    table_ptr,
    sinks_ptr,
    out_ptr,
    num_rows,
    q_stride,
    table_stride,
    num_kv_heads,
    group,
    head_dim,
    window,
    scale,
    softcap,
    BLOCK_SIZE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    s = tl.arange(0, BLOCK_S)
    num_heads = num_kv_heads * group
    kv_stride = num_kv_heads * head_dim
    out_stride = num_heads * head_dim
    inside_D = d < head_dim
    at_SD = s[:, None] * kv_stride + d[None, :]
    cores = tl.num_programs(0)
    items = 0  # those of the rows before this one
    for row in range(num_rows):
        q_len = tl.load(q_len_ptr + row)
        past = tl.load(kv_len_ptr + row) - q_len
        token = tl.load(q_start_ptr + row).to(tl.int64)
        one = q_len == 1
        row_items = tl.where(one, num_kv_heads, (q_len + BLOCK_M - 1) // BLOCK_M * num_heads)
        for item in range((tl.program_id(0) - items % cores + cores) % cores, row_items, cores):
            head = tl.where(one, item * group, item % num_heads)
            kv_head = head // group
            first = tl.where(one, 0, item // num_heads * BLOCK_M)
            size = tl.where(one, group, q_len - first)
            q_step = tl.where(one, head_dim, q_stride)
            out_step = tl.where(one, head_dim, out_stride)
            position_M = past + first + m * tl.where(one, 0, 1)
            end = past + tl.minimum(first + BLOCK_M, q_len)
            inside_MD = (m < size)[:, None] & inside_D[None, :]
            q = q_ptr + (token + first) * q_stride + head * head_dim
            q_MD = tl.load(q + m[:, None] * q_step + d[None, :], mask=inside_MD, other=0.0)
            best_M = tl.full([BLOCK_M], HIDDEN, tl.float32)
            sum_M = tl.zeros([BLOCK_M], tl.float32)
            if HAS_SINKS:
                sink_M = tl.load(sinks_ptr + head + m * tl.where(one, 1, 0), mask=m < size, other=0.0)
                best_M = sink_M.to(tl.float32) * LOG2_E
                sum_M = sum_M + 1.0
            out_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
            begin = tl.maximum(past + first - window + 1, 0) // BLOCK_S * BLOCK_S
            for key in range(begin, end, BLOCK_S):
                block = tl.load(table_ptr + table_stride.to(tl.int64) * row + key // BLOCK_SIZE).to(tl.int64)
                base = (block * BLOCK_SIZE + key % BLOCK_SIZE) * kv_stride + kv_head * head_dim
                # what the row does not own may hold NaN: it is not loaded. Keys before the window are its own
                inside_SD = (key + s < end)[:, None] & inside_D[None, :]
                k_SD = tl.load(k_ptr + base + at_SD, mask=inside_SD, other=0.0)
                s_MS = tl.dot(q_MD, tl.trans(k_SD), input_precision="ieee")
                s_MS = scaled_scores(s_MS, scale, softcap, SOFTCAP)
                behind_MS = position_M[:, None] - (key + s)[None, :]
                s_MS = tl.where((behind_MS >= 0) & (behind_MS < window), s_MS, HIDDEN)
                now_M = tl.maximum(best_M, tl.max(s_MS, axis=1))
                keep_M = tl.exp2(best_M - now_M)
                p_MS = tl.exp2(s_MS - now_M[:, None])
                sum_M = sum_M * keep_M + tl.sum(p_MS, axis=1)
                v_SD = tl.load(v_ptr + base + at_SD, mask=inside_SD, other=0.0)
                part_MD = tl.dot(p_MS.to(v_SD.dtype), v_SD, input_precision="ieee")
                out_MD = out_MD * keep_M[:, None] + part_MD
                best_M = now_M
            y_MD = (out_MD / sum_M[:, None]).to(out_ptr.dtype.element_ty)
            out = out_ptr + (token + first) * out_stride + head * head_dim
            tl.store(out + m[:, None] * out_step + d[None, :], y_MD, mask=inside_MD)
        items += row_items


def case(desc: AttentionDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config, pointer = pick_config(desc), POINTERS[desc.dtype]
    lengths = ("q_start_ptr", "q_len_ptr", "kv_len_ptr", "table_ptr")
    sizes = ("num_rows", "q_stride", "table_stride", "num_kv_heads", "group", "head_dim", "window")
    return KernelCase(
        kernel=paged_attention_kernel,
        signature=(
            *((name, pointer) for name in ("q_ptr", "k_ptr", "v_ptr")),
            *((name, "*i32") for name in lengths),
            *((name, pointer) for name in ("sinks_ptr", "out_ptr")),
            *((name, "i32") for name in sizes),
            ("scale", "fp32"),
            ("softcap", "fp32"),
        ),
        constants={
            "BLOCK_SIZE": desc.block_size,
            "SOFTCAP": desc.softcap,
            "HAS_SINKS": desc.sinks,
            "BLOCK_M": config.block_m,
            "BLOCK_D": config.block_d,
            "BLOCK_S": config.block_s,
        },
        options={},
    )


def refuse(spec: AttentionSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    if spec.dtype not in DTYPES:
        return f"dtype {spec.dtype} is not one of {', '.join(DTYPES)}"
    if spec.head_dim > MAX_HEAD_DIM:
        return f"a head dim of {spec.head_dim} is above {MAX_HEAD_DIM}"
    if spec.num_heads // spec.num_kv_heads > MAX_GROUP:
        return f"{spec.num_heads // spec.num_kv_heads} query heads share a KV head, and {MAX_GROUP} are served"
    return f"a KV block of {spec.block_size} is not a multiple of 16" if spec.block_size % 16 else ""


def make_paged_attention(spec: AttentionSpec, soc: Soc, launcher: Launcher) -> Callable[..., None]:
    """paged_attention(q_TND, kv, plan, sinks_N | None, out_TND). q may be strided in T."""
    group, grid = spec.num_heads // spec.num_kv_heads, (soc.cube_cores,)
    desc = AttentionDesc(
        head_dim=spec.head_dim,
        block_size=spec.block_size,
        softcap=spec.softcap is not None,
        sinks=spec.has_sinks,
        dtype=spec.dtype,
    )
    launch = launcher.prepare(case(desc))
    rest = (spec.num_kv_heads, group, spec.head_dim, spec.window or NO_WINDOW, spec.scale, spec.softcap or 0.0)

    def paged_attention(
        q_TND: torch.Tensor,
        kv: CanonicalKV,
        plan: AscendAttentionPlan,
        sinks_N: torch.Tensor | None,
        out_TND: torch.Tensor,
    ) -> None:
        rows = (plan.q_start_R, plan.q_len_R, plan.kv_len_R, plan.table_RB)
        sizes = (plan.num_rows, q_TND.stride(0), plan.table_RB.stride(0))
        tensors = (q_TND, kv.k_BSKD, kv.v_BSKD, *rows, q_TND if sinks_N is None else sinks_N, out_TND)
        launch(grid, *tensors, *sizes, *rest)

    return paged_attention

"""Prefill, mixed and verify attention over paged KV: flash style, one program per tile of queries and KV head.

The rows of the products are (query, head of the KV head) pairs, so that each tile of keys is read once for
all heads that share it. Interior tiles, which every query of the tile sees whole, need no mask; on chips with
a tensor memory accelerator they come through descriptors over the cache, one page and KV head a tile.

The ordered form serves `--deterministic`, rows with one query too: all tiles of keys take the masked way, in
ascending order, and tiles of keys begin at fixed places. A tile that a query does not see leaves its bits
alone, so they do not depend on the queries beside it.

Suffixes: M (query, head) pairs, D head dim (padded), S keys of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import triton
import triton.language as tl

from isoinfer.backends.kernel_case import POINTERS, KernelCase
from isoinfer.kernels_cuda.attention_decode import launch_options, masked_scores

DTYPES = ("bfloat16", "float16", "float32")
TMA_FROM = 90
"""The first capability with a tensor memory accelerator."""
MAX_PLAIN_GROUP = 16
"""Query heads of one KV head in float32, whose tiles are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillDesc:
    """What a configuration depends on. `sm`: compute capability, as 90. `ordered`: see above."""

    sm: int
    head_dim: int
    block_size: int
    softcap: bool
    ordered: bool
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConfig:
    """`block_m` (query, head) pairs; `block_s` keys, which lie in one KV block.

    `max_registers` of a thread; 0 leaves it to the assembler, which may spill a few for the sake of occupancy.
    """

    block_m: int
    block_d: int
    block_s: int
    tma: bool
    num_warps: int
    num_stages: int
    max_registers: int


def pick_config(desc: PrefillDesc) -> PrefillConfig:
    """128 rows where the type has tensor cores and the head is not wide, so that the matrix unit is full.

    float32 has no matrix unit: its products hold their operands in registers, so tiles are small.
    """
    block_d = max(16, triton.next_power_of_2(desc.head_dim))
    plain = desc.dtype == "float32"
    rows = 16 if plain else 64 if block_d > 128 else 128
    tma = TMA_FROM <= desc.sm < 120 and desc.head_dim == block_d and not plain
    # Hopper holds products in registers, and descriptors leave the fewest for them
    narrow = plain or (desc.sm == 90 and tma and block_d > 128)
    block_s = 16 if narrow else 32 if block_d > 128 else 64
    while desc.block_size % block_s:
        block_s //= 2
    return PrefillConfig(
        block_m=rows,
        block_d=block_d,
        block_s=block_s,
        tma=tma,
        num_warps=8,
        num_stages=2 if tma or desc.sm >= TMA_FROM else 1,
        max_registers=255 if plain or (desc.softcap and block_d <= 32) else 0,
    )


def descriptions(sm: int) -> Iterator[PrefillDesc]:
    """One description for every configuration that `pick_config` can return for `sm` at the backend's block size.

    Head dims that are no power of two have no descriptors. float32 has none at all.
    """
    for dtype in DTYPES:
        for head_dim in (16, 32, 64, 128, 256, *(() if dtype == "float32" else (48, 96, 192))):
            for softcap, ordered in product((False, True), repeat=2):
                yield PrefillDesc(
                    sm=sm, head_dim=head_dim, block_size=64, softcap=softcap, ordered=ordered, dtype=dtype
                )


def expects(desc: PrefillDesc) -> frozenset[str]:
    """What the compiled code must show."""
    config = pick_config(desc)
    matrix = {90: "wgmma", 100: "tcgen05", 103: "tcgen05"}.get(desc.sm)
    full = config.block_m >= 64 and desc.dtype != "float32" and matrix is not None
    return frozenset(([matrix] if full and matrix else []) + (["tma"] if config.tma else []))


@triton.jit
def accumulate(
    q_MD, k_SD, v_SD, visible_MS, best_M, sum_M, out_MD, scale, softcap, SOFTCAP: tl.constexpr, MASKED: tl.constexpr
):
    """One online-softmax step. A row that has seen no key keeps -inf and 0."""
    s_MS = tl.dot(q_MD, tl.trans(k_SD), input_precision="ieee")
    s_MS = masked_scores(s_MS, visible_MS, scale, softcap, SOFTCAP)
    now_M = tl.maximum(best_M, tl.max(s_MS, axis=1))
    if MASKED:
        base_M = tl.where(now_M == float("-inf"), 0.0, now_M)
    else:
        base_M = now_M
    keep_M = tl.exp2(best_M - base_M)
    p_MS = tl.exp2(s_MS - base_M[:, None])
    sum_M = sum_M * keep_M + tl.sum(p_MS, axis=1)
    out_MD = tl.dot(p_MS.to(v_SD.dtype), v_SD, out_MD * keep_M[:, None], input_precision="ieee")
    return now_M, sum_M, out_MD


@triton.jit(do_not_specialize=["table_stride", "num_heads", "num_kv_heads", "group", "window"])
def attention_prefill_kernel(
    q_ptr,
    k,
    v,
    tile_row_ptr,
    tile_query_ptr,
    q_start_ptr,
    q_len_ptr,
    kv_len_ptr,
    table_ptr,
    sinks_ptr,
    out_ptr,
    q_stride,
    table_stride,
    num_heads,
    num_kv_heads,
    group,
    head_dim,
    window,
    scale,
    softcap,
    BLOCK_SIZE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    ORDERED: tl.constexpr,
    TMA: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = tl.load(tile_row_ptr + tile)
    first_query = tl.load(tile_query_ptr + tile)
    q_len = tl.load(q_len_ptr + row)
    past = tl.load(kv_len_ptr + row) - q_len
    m = tl.arange(0, BLOCK_M)
    queries = BLOCK_M // group
    d = tl.arange(0, BLOCK_D)
    s = tl.arange(0, BLOCK_S)
    query_M = first_query + m // group
    head_M = kv_head * group + m % group
    real_M = (query_M < q_len) & (m < queries * group)
    token_M = (tl.load(q_start_ptr + row) + query_M).to(tl.int64)
    inside_MD = real_M[:, None] & (d < head_dim)[None, :]
    q_MD = tl.load(q_ptr + token_M[:, None] * q_stride + head_M[:, None] * head_dim + d, mask=inside_MD, other=0.0)
    position_M = past + query_M
    lowest_M = position_M - window  # the last key that is not seen any more
    last_position = past + tl.minimum(first_query + queries, q_len) - 1
    begin = tl.maximum(past + first_query - window + 1, 0) // BLOCK_S * BLOCK_S
    end = last_position + 1
    # tiles from `whole` to `partial` are seen whole by every query
    whole = tl.maximum(last_position - window + 1, 0)
    whole = tl.minimum((whole + BLOCK_S - 1) // BLOCK_S * BLOCK_S, end)
    partial = tl.maximum((past + first_query + 1) // BLOCK_S * BLOCK_S, whole)
    whole = tl.maximum(whole, begin)
    if ORDERED:
        whole = begin
        partial = begin
    best_M = tl.full([BLOCK_M], float("-inf"), tl.float32)
    sum_M = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:
        best_M = tl.load(sinks_ptr + head_M).to(tl.float32) * 1.4426950408889634
        sum_M += 1.0
    out_MD = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    table = table_ptr + row.to(tl.int64) * table_stride
    everything_MS = tl.full([BLOCK_M, BLOCK_S], True, tl.int1)
    for key in range(whole, partial, BLOCK_S):
        slot = tl.load(table + key // BLOCK_SIZE) * BLOCK_SIZE + key % BLOCK_SIZE
        if TMA:
            k_SD = k.load([slot, kv_head * BLOCK_D])
            v_SD = v.load([slot, kv_head * BLOCK_D])
        else:
            offset_SD = ((slot.to(tl.int64) + s)[:, None] * num_kv_heads + kv_head) * head_dim + d[None, :]
            k_SD = tl.load(k + offset_SD, mask=(d < head_dim)[None, :], other=0.0)
            v_SD = tl.load(v + offset_SD, mask=(d < head_dim)[None, :], other=0.0)
        best_M, sum_M, out_MD = accumulate(
            q_MD, k_SD, v_SD, everything_MS, best_M, sum_M, out_MD, scale, softcap, SOFTCAP, False
        )
    # the rest: tiles before `whole`, then those from `partial` on, with a mask on what is loaded and on what is seen
    before = (tl.minimum(whole, end) - begin + BLOCK_S - 1) // BLOCK_S
    after = (end - partial + BLOCK_S - 1) // BLOCK_S
    for i in range(before + tl.maximum(after, 0)):
        key = tl.where(i < before, begin + i * BLOCK_S, partial + (i - before) * BLOCK_S)
        slot = tl.load(table + key // BLOCK_SIZE).to(tl.int64) * BLOCK_SIZE + key % BLOCK_SIZE
        key_S = key + s
        owned_S = (key_S < end) & (key_S > past + first_query - window)
        offset_SD = ((slot + s)[:, None] * num_kv_heads + kv_head) * head_dim + d[None, :]
        inside_SD = owned_S[:, None] & (d < head_dim)[None, :]
        if TMA:
            # a descriptor cannot mask: NaN of others is replaced after the load
            k_SD = tl.where(owned_S[:, None], k.load([slot.to(tl.int32), kv_head * BLOCK_D]), 0.0).to(q_MD.dtype)
            v_SD = tl.where(owned_S[:, None], v.load([slot.to(tl.int32), kv_head * BLOCK_D]), 0.0).to(q_MD.dtype)
        else:
            k_SD = tl.load(k + offset_SD, mask=inside_SD, other=0.0)
            v_SD = tl.load(v + offset_SD, mask=inside_SD, other=0.0)
        visible_MS = (key_S[None, :] <= position_M[:, None]) & (key_S[None, :] > lowest_M[:, None])
        best_M, sum_M, out_MD = accumulate(
            q_MD, k_SD, v_SD, visible_MS, best_M, sum_M, out_MD, scale, softcap, SOFTCAP, True
        )
    y_MD = (out_MD / sum_M[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (token_M * num_heads + head_M)[:, None] * head_dim + d[None, :], y_MD, mask=inside_MD)


def case(desc: PrefillDesc, sinks: bool = False) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config, pointer = pick_config(desc), f"{POINTERS[desc.dtype]}:16"
    cache = f"tensordesc<{POINTERS[desc.dtype][1:]}[{config.block_s},{config.block_d}]>" if config.tma else pointer
    names = ("tile_row_ptr", "tile_query_ptr", "q_start_ptr", "q_len_ptr", "kv_len_ptr", "table_ptr")
    return KernelCase(
        kernel=attention_prefill_kernel,
        signature=(
            ("q_ptr", pointer),
            ("k", cache),
            ("v", cache),
            *((name, "*i32") for name in names),
            ("sinks_ptr", pointer),
            ("out_ptr", pointer),
            ("q_stride", "i32:16"),
            *((name, "i32") for name in ("table_stride", "num_heads", "num_kv_heads", "group")),
            ("head_dim", "i32:16"),
            ("window", "i32"),
            ("scale", "fp32"),
            ("softcap", "fp32"),
        ),
        constants={
            "BLOCK_SIZE": desc.block_size,
            "SOFTCAP": desc.softcap,
            "HAS_SINKS": sinks,
            "ORDERED": desc.ordered,
            "TMA": config.tma,
            "BLOCK_M": config.block_m,
            "BLOCK_D": config.block_d,
            "BLOCK_S": config.block_s,
        },
        options=launch_options(config.num_warps, config.num_stages, config.max_registers),
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """The cases of this file for `sm`, with what their compiled code must show."""
    for desc in descriptions(sm):
        for sinks in (False,) if desc.softcap else (False, True):  # paged_attention refuses both together
            yield case(desc, sinks), expects(desc)

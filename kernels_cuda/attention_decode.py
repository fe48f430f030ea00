"""Decode attention over paged KV: the keys of a row are split at fixed places, and the parts combined in order.

The heads of one KV head make the rows of a matrix product. Splits have a fixed length and are combined one
after the other, so the bits of a row depend on no other row. Lengths and tables are read on the device, so a
captured graph replays with others; programs past a row's length do nothing.

Suffixes: R decode rows, N query heads, K KV heads, G heads of a KV head (padded), D head dim (padded),
S keys of a tile, C splits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import triton
import triton.language as tl

from isoinfer.backends.kernel_case import POINTERS, KernelCase

DTYPES = ("bfloat16", "float16", "float32")
SPLIT = 512
"""Keys of one split: enough work for a program, enough programs for a long context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeDesc:
    """What a configuration depends on. `group`: query heads of one KV head."""

    group: int
    head_dim: int
    block_size: int
    softcap: bool
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """`block_g` and `block_d`: padded heads and head dim. `block_s`: keys of a tile, which lies in one KV block.

    `max_registers` of a thread; 0 leaves it to the assembler, which may spill a few for the sake of occupancy.
    """

    block_g: int
    block_d: int
    block_s: int
    num_warps: int
    num_stages: int
    max_registers: int


def pick_config(desc: DecodeDesc) -> DecodeConfig:
    """Memory is the limit: 64 keys a tile, fewer where they are wide, and two tiles in flight.

    float32 has no matrix unit: its products hold their operands in registers, so tiles are small and warps many.
    """
    block_d = max(16, triton.next_power_of_2(desc.head_dim))
    block_g = max(16, triton.next_power_of_2(desc.group))
    plain = desc.dtype == "float32"
    block_s = (16 if block_d > 128 else 32) if plain else (32 if block_d > 128 else 64)
    while desc.block_size % block_s:
        block_s //= 2
    return DecodeConfig(
        block_g=block_g,
        block_d=block_d,
        block_s=block_s,
        num_warps=8 if plain or block_g > 16 else 4,
        num_stages=2,
        max_registers=128 if block_d <= 32 else 0,
    )


def descriptions() -> Iterator[DecodeDesc]:
    """One description for every configuration that `pick_config` can return at the backend's block size."""
    for dtype in DTYPES:
        for head_dim in (16, 32, 64, 128, 256):
            for group in (16,) if dtype == "float32" else (16, 32, 64):
                for softcap in (False, True) if group == 16 else (False,):
                    yield DecodeDesc(group=group, head_dim=head_dim, block_size=64, softcap=softcap, dtype=dtype)


def launch_options(num_warps: int, num_stages: int, max_registers: int) -> dict[str, int]:
    """The options of a case. `max_registers` 0: no limit of ours."""
    limit = {"maxnreg": max_registers} if max_registers else {}
    return {"num_warps": num_warps, "num_stages": num_stages} | limit


@triton.jit
def masked_scores(s, visible, scale, softcap, SOFTCAP: tl.constexpr):
    """Scores in units of log2, -inf where not visible."""
    s = s * scale
    if SOFTCAP:
        x = tl.minimum(tl.maximum(s / softcap, -20.0), 20.0)
        s = softcap * (1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))
    return tl.where(visible, s * 1.4426950408889634, float("-inf"))


@triton.jit(do_not_specialize=["table_stride", "num_heads", "num_kv_heads", "group", "window", "num_splits"])
def attention_decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    rows_ptr,
    q_start_ptr,
    kv_len_ptr,
    table_ptr,
    part_ptr,
    q_stride,
    table_stride,
    num_heads,
    num_kv_heads,
    group,
    head_dim,
    window,
    num_splits,
    scale,
    softcap,
    BLOCK_SIZE: tl.constexpr,
    SPLIT_S: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    index = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row = tl.load(rows_ptr + index)
    kv_len = tl.load(kv_len_ptr + row)
    first = tl.maximum(kv_len - window, 0)
    end = tl.minimum((split + 1) * SPLIT_S, kv_len)
    start = tl.maximum(split * SPLIT_S, first // BLOCK_S * BLOCK_S)
    g = tl.arange(0, BLOCK_G)
    d = tl.arange(0, BLOCK_D)
    s = tl.arange(0, BLOCK_S)
    head_G = kv_head * group + g
    token = tl.load(q_start_ptr + row).to(tl.int64)
    inside_GD = (g < group)[:, None] & (d < head_dim)[None, :]
    q_GD = tl.load(q_ptr + token * q_stride + head_G[:, None] * head_dim + d[None, :], mask=inside_GD, other=0.0)
    best_G = tl.full([BLOCK_G], float("-inf"), tl.float32)
    sum_G = tl.zeros([BLOCK_G], tl.float32)
    out_GD = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    for key in range(start, end, BLOCK_S):
        block = tl.load(table_ptr + row.to(tl.int64) * table_stride + key // BLOCK_SIZE).to(tl.int64)
        slot_S = block * BLOCK_SIZE + key % BLOCK_SIZE + s
        offset_SD = (slot_S[:, None] * num_kv_heads + kv_head) * head_dim + d[None, :]
        # what the row does not own, or owns no more, may hold NaN: it is not even loaded
        visible_S = (key + s >= first) & (key + s < end)
        inside_SD = visible_S[:, None] & (d < head_dim)[None, :]
        k_SD = tl.load(k_ptr + offset_SD, mask=inside_SD, other=0.0)
        v_SD = tl.load(v_ptr + offset_SD, mask=inside_SD, other=0.0)
        s_GS = tl.dot(q_GD, tl.trans(k_SD), input_precision="ieee")
        s_GS = masked_scores(s_GS, visible_S[None, :], scale, softcap, SOFTCAP)
        now_G = tl.maximum(best_G, tl.max(s_GS, axis=1))
        keep_G = tl.exp2(best_G - now_G)
        p_GS = tl.exp2(s_GS - now_G[:, None])
        sum_G = sum_G * keep_G + tl.sum(p_GS, axis=1)
        out_GD = tl.dot(p_GS.to(v_SD.dtype), v_SD, out_GD * keep_G[:, None], input_precision="ieee")
        best_G = now_G
    part = (index.to(tl.int64) * num_heads + head_G) * num_splits + split
    part_G = part_ptr + part * (BLOCK_D + 2)
    tl.store(part_G, best_G, mask=g < group)
    tl.store(part_G + 1, sum_G, mask=g < group)
    tl.store(part_G[:, None] + 2 + d[None, :], out_GD, mask=inside_GD)


@triton.jit(do_not_specialize=["num_heads", "window", "num_splits"])
def attention_combine_kernel(
    part_ptr,
    rows_ptr,
    q_start_ptr,
    kv_len_ptr,
    sinks_ptr,
    out_ptr,
    num_heads,
    head_dim,
    window,
    num_splits,
    SPLIT_S: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    index = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.load(rows_ptr + index)
    kv_len = tl.load(kv_len_ptr + row)
    d = tl.arange(0, BLOCK_D)
    if HAS_SINKS:
        best = tl.load(sinks_ptr + head).to(tl.float32) * 1.4426950408889634
        total = 1.0
    else:
        best = float("-inf")
        total = 0.0
    out_D = tl.zeros([BLOCK_D], tl.float32)
    base = part_ptr + (index.to(tl.int64) * num_heads + head) * num_splits * (BLOCK_D + 2)
    for split in range(tl.maximum(kv_len - window, 0) // SPLIT_S, (kv_len + SPLIT_S - 1) // SPLIT_S):
        part = base + split * (BLOCK_D + 2)
        part_best = tl.load(part)
        now = tl.maximum(best, part_best)
        keep = tl.exp2(best - now)
        add = tl.exp2(part_best - now)
        total = total * keep + tl.load(part + 1) * add
        out_D = out_D * keep + tl.load(part + 2 + d, mask=d < head_dim, other=0.0) * add
        best = now
    token = tl.load(q_start_ptr + row).to(tl.int64)
    y_D = out_D / total
    tl.store(out_ptr + (token * num_heads + head) * head_dim + d, y_D.to(out_ptr.dtype.element_ty), mask=d < head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class CombineDesc:
    """What the combining kernel depends on."""

    block_d: int
    sinks: bool
    dtype: str


def combine_descriptions() -> Iterator[CombineDesc]:
    """One description for every case of the combining kernel."""
    for dtype in DTYPES:
        for block_d in (16, 32, 64, 128, 256):
            yield from (CombineDesc(block_d=block_d, sinks=sinks, dtype=dtype) for sinks in (False, True))


def combine_case(desc: CombineDesc) -> KernelCase:
    """The combining kernel as it is launched for `desc`."""
    pointer = f"{POINTERS[desc.dtype]}:16"
    return KernelCase(
        kernel=attention_combine_kernel,
        signature=(
            ("part_ptr", "*fp32:16"),
            *((name, "*i32") for name in ("rows_ptr", "q_start_ptr", "kv_len_ptr")),
            ("sinks_ptr", pointer),
            ("out_ptr", pointer),
            ("num_heads", "i32"),
            ("head_dim", "i32:16"),
            ("window", "i32"),
            ("num_splits", "i32"),
        ),
        constants={"SPLIT_S": SPLIT, "HAS_SINKS": desc.sinks, "BLOCK_D": desc.block_d},
        options={"num_warps": 1},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    for each in (*map(case, descriptions()), *map(combine_case, combine_descriptions())):
        yield each, frozenset()


def case(desc: DecodeDesc) -> KernelCase:
    """The split kernel as it is launched for `desc`."""
    config, pointer = pick_config(desc), f"{POINTERS[desc.dtype]}:16"
    return KernelCase(
        kernel=attention_decode_kernel,
        signature=(
            ("q_ptr", pointer),
            ("k_ptr", pointer),
            ("v_ptr", pointer),
            *((name, "*i32") for name in ("rows_ptr", "q_start_ptr", "kv_len_ptr", "table_ptr")),
            ("part_ptr", "*fp32:16"),
            ("q_stride", "i32:16"),
            *((name, "i32") for name in ("table_stride", "num_heads", "num_kv_heads", "group")),
            ("head_dim", "i32:16"),
            *((name, "i32") for name in ("window", "num_splits")),
            ("scale", "fp32"),
            ("softcap", "fp32"),
        ),
        constants={
            "BLOCK_SIZE": desc.block_size,
            "SPLIT_S": SPLIT,
            "SOFTCAP": desc.softcap,
            "BLOCK_G": config.block_g,
            "BLOCK_D": config.block_d,
            "BLOCK_S": config.block_s,
        },
        options=launch_options(config.num_warps, config.num_stages, config.max_registers),
    )

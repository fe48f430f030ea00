"""Rotary embedding of q (in place) and k, fused with writing k and v into paged KV. Cores take tokens in turn.

Rotated heads of k go straight to their slot, and after them the dims that do not rotate.

Suffixes: T tokens, N query heads, K KV heads, D head dim, F half of the rotary dim, P positions in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import CanonicalKV, RopeKVWriteSpec
from isoinfer.kernels_ascend import kv_write, rope
from isoinfer.kernels_ascend.kv_write import KVWriteDesc, copy_values
from isoinfer.kernels_ascend.rope import HALVES, RopeDesc, rotate_heads

DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeKVWriteDesc:
    """What a configuration depends on."""

    rotary_half: int
    interleaved: bool
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeKVWriteConfig:
    """`block_n` heads of `block_f` pairs a tile; `block_x` values are copied at a time."""

    block_n: int
    block_f: int
    block_x: int


def pick_config(desc: RopeKVWriteDesc) -> RopeKVWriteConfig:
    """The tiles of the two ops alone."""
    half = RopeDesc(rotary_half=desc.rotary_half, interleaved=desc.interleaved, dtype=desc.dtype)
    tile = rope.pick_config(half)
    block_x = kv_write.pick_config(KVWriteDesc(dtype=desc.dtype)).block_x
    return RopeKVWriteConfig(block_n=tile.block_n, block_f=tile.block_f, block_x=block_x)


def descriptions() -> Iterator[RopeKVWriteDesc]:
    """One description for every configuration that `pick_config` can return, with each pairing."""
    for dtype in DTYPES:
        for interleaved in (False, True):
            for half in HALVES:
                yield RopeKVWriteDesc(rotary_half=half, interleaved=interleaved, dtype=dtype)


@triton.jit
def copy_rest(source_ptr, target_ptr, num_heads, head_dim, first, BLOCK_N: tl.constexpr, BLOCK_F: tl.constexpr):
    """The dims of one token's heads from `first` on."""
    for start in range(0, num_heads, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        for begin in range(first, head_dim, BLOCK_F):
            d = begin + tl.arange(0, BLOCK_F)
            inside_NF = (n < num_heads)[:, None] & (d < head_dim)[None, :]
            at_NF = n[:, None] * head_dim + d[None, :]
            tl.store(target_ptr + at_NF, tl.load(source_ptr + at_NF, mask=inside_NF), mask=inside_NF)


@triton.jit(
    do_not_specialize=[
        "tokens",
        "q_stride",
        "k_stride",
        "v_stride",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "rotary_half",
    ]
)
def rope_kv_write_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    positions_ptr,
    table_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slots_ptr,
    tokens,
    q_stride,
    k_stride,
    v_stride,
    num_heads,
    num_kv_heads,
    head_dim,
    rotary_half,
    INTERLEAVED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_X: tl.constexpr,
):
    f = tl.arange(0, BLOCK_F)
    width = num_kv_heads * head_dim
    for token in range(tl.program_id(0), tokens, tl.num_programs(0)):
        row = table_ptr + tl.load(positions_ptr + token).to(tl.int64) * (2 * rotary_half)
        cos_F = tl.load(row + f, mask=f < rotary_half, other=0.0)
        sin_F = tl.load(row + rotary_half + f, mask=f < rotary_half, other=0.0)
        q = q_ptr + q_stride.to(tl.int64) * token
        k = k_ptr + k_stride.to(tl.int64) * token
        at = tl.load(slots_ptr + token).to(tl.int64) * width
        rotate_heads(q, q, num_heads, head_dim, rotary_half, cos_F, sin_F, INTERLEAVED, BLOCK_N, BLOCK_F)
        k_cache = k_cache_ptr + at
        rotate_heads(k, k_cache, num_kv_heads, head_dim, rotary_half, cos_F, sin_F, INTERLEAVED, BLOCK_N, BLOCK_F)
        copy_rest(k, k_cache, num_kv_heads, head_dim, 2 * rotary_half, BLOCK_N, BLOCK_F)
        copy_values(v_ptr + v_stride.to(tl.int64) * token, v_cache_ptr + at, width, BLOCK_X)


def case(desc: RopeKVWriteDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config, pointer = pick_config(desc), POINTERS[desc.dtype]
    strides = ("tokens", "q_stride", "k_stride", "v_stride")
    return KernelCase(
        kernel=rope_kv_write_kernel,
        signature=(
            *((name, pointer) for name in ("q_ptr", "k_ptr", "v_ptr")),
            ("positions_ptr", "*i32"),
            ("table_ptr", "*fp32"),
            *((name, pointer) for name in ("k_cache_ptr", "v_cache_ptr")),
            ("slots_ptr", "*i32"),
            *((name, "i32") for name in (*strides, "num_heads", "num_kv_heads", "head_dim", "rotary_half")),
        ),
        constants={
            "INTERLEAVED": desc.interleaved,
            "BLOCK_N": config.block_n,
            "BLOCK_F": config.block_f,
            "BLOCK_X": config.block_x,
        },
        options={},
    )


def refuse(spec: RopeKVWriteSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    return rope.refuse(spec.rope)


def make_rope_kv_write(spec: RopeKVWriteSpec, soc: Soc, launcher: Launcher) -> Callable[..., None]:
    """rope_kv_write(q_TND, k_TKD, v_TKD, positions_T, cos_sin_PR, kv, slots_T). q, k, v may be strided in T."""
    num_kv_heads, head_dim, half = spec.num_kv_heads, spec.head_dim, spec.rope.rotary_dim // 2
    desc = RopeKVWriteDesc(rotary_half=half, interleaved=spec.rope.interleaved, dtype=spec.dtype)
    launch, grid = launcher.prepare(case(desc)), (soc.vector_cores,)

    def rope_kv_write(
        q_TND: torch.Tensor,
        k_TKD: torch.Tensor,
        v_TKD: torch.Tensor,
        positions_T: torch.Tensor,
        cos_sin_PR: torch.Tensor,
        kv: CanonicalKV,
        slots_T: torch.Tensor,
    ) -> None:
        tokens, num_heads, _ = q_TND.shape
        if tokens:
            tensors = (q_TND, k_TKD, v_TKD, positions_T, cos_sin_PR, kv.k_BSKD, kv.v_BSKD, slots_T)
            strides = (q_TND.stride(0), k_TKD.stride(0), v_TKD.stride(0))
            launch(grid, *tensors, tokens, *strides, num_heads, num_kv_heads, head_dim, half)

    return rope_kv_write

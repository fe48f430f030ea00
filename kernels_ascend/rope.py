"""Rotary embedding of q and k, in place. Cores take tokens in turn, and a token's heads several at a time.

Suffixes: T tokens, N query heads, K KV heads (both: heads of a tile), D head dim, F half of the rotary dim,
P positions in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import RopeSpec

DTYPES = ("bfloat16", "float16", "float32")
MAX_HEAD_DIM = 512
HALVES = (32, 64, 128, 256)
"""Halves of a rotary dim that have tiles of their own, padded to these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeDesc:
    """What a configuration depends on."""

    rotary_half: int
    interleaved: bool
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """`block_n` heads of `block_f` pairs a tile."""

    block_n: int
    block_f: int


def pick_config(desc: RopeDesc) -> RopeConfig:
    """1024 pairs a tile: ten tiles live, which every chip's buffer holds twice."""
    block_f = next(half for half in HALVES if desc.rotary_half <= half)
    return RopeConfig(block_n=min(16, 1024 // block_f), block_f=block_f)


def descriptions() -> Iterator[RopeDesc]:
    """One description for every configuration that `pick_config` can return, with each pairing."""
    for dtype in DTYPES:
        for interleaved in (False, True):
            for half in HALVES:
                yield RopeDesc(rotary_half=half, interleaved=interleaved, dtype=dtype)


@triton.jit
def rotate_heads(
    source_ptr,
    target_ptr,
    num_heads,
    head_dim,
    rotary_half,
    cos_F,
    sin_F,
    INTERLEAVED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    """Rotate the heads of one token, from where they are to another place or in place."""
    f = tl.arange(0, BLOCK_F)
    for start in range(0, num_heads, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        inside_NF = (n < num_heads)[:, None] & (f < rotary_half)[None, :]
        if INTERLEAVED:
            pair_NF = n[:, None] * head_dim + 2 * f[None, :]
            a_NF = tl.load(source_ptr + pair_NF, mask=inside_NF, other=0.0).to(tl.float32)
            b_NF = tl.load(source_ptr + 1 + pair_NF, mask=inside_NF, other=0.0).to(tl.float32)
        else:
            pair_NF = n[:, None] * head_dim + f[None, :]
            a_NF = tl.load(source_ptr + pair_NF, mask=inside_NF, other=0.0).to(tl.float32)
            b_NF = tl.load(source_ptr + rotary_half + pair_NF, mask=inside_NF, other=0.0).to(tl.float32)
        first_NF = (a_NF * cos_F[None, :] - b_NF * sin_F[None, :]).to(target_ptr.dtype.element_ty)
        second_NF = (b_NF * cos_F[None, :] + a_NF * sin_F[None, :]).to(target_ptr.dtype.element_ty)
        if INTERLEAVED:
            tl.store(target_ptr + pair_NF, first_NF, mask=inside_NF)
            tl.store(target_ptr + 1 + pair_NF, second_NF, mask=inside_NF)
        else:
            tl.store(target_ptr + pair_NF, first_NF, mask=inside_NF)
            tl.store(target_ptr + rotary_half + pair_NF, second_NF, mask=inside_NF)


@triton.jit(
    do_not_specialize=["tokens", "q_stride", "k_stride", "num_heads", "num_kv_heads", "head_dim", "rotary_half"]
)
def rope_kernel(
    q_ptr,
    k_ptr,
    positions_ptr,
    table_ptr,
    tokens,
    q_stride,
    k_stride,
    num_heads,
    num_kv_heads,
    head_dim,
    rotary_half,
    INTERLEAVED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    f = tl.arange(0, BLOCK_F)
    for token in range(tl.program_id(0), tokens, tl.num_programs(0)):
        at = table_ptr + tl.load(positions_ptr + token).to(tl.int64) * (2 * rotary_half)
        cos_F = tl.load(at + f, mask=f < rotary_half, other=0.0)
        sin_F = tl.load(at + rotary_half + f, mask=f < rotary_half, other=0.0)
        q = q_ptr + q_stride.to(tl.int64) * token
        k = k_ptr + k_stride.to(tl.int64) * token
        rotate_heads(q, q, num_heads, head_dim, rotary_half, cos_F, sin_F, INTERLEAVED, BLOCK_N, BLOCK_F)
        rotate_heads(k, k, num_kv_heads, head_dim, rotary_half, cos_F, sin_F, INTERLEAVED, BLOCK_N, BLOCK_F)


def case(desc: RopeDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config, pointer = pick_config(desc), POINTERS[desc.dtype]
    sizes = ("tokens", "q_stride", "k_stride", "num_heads", "num_kv_heads", "head_dim", "rotary_half")
    return KernelCase(
        kernel=rope_kernel,
        signature=(
            ("q_ptr", pointer),
            ("k_ptr", pointer),
            ("positions_ptr", "*i32"),
            ("table_ptr", "*fp32"),
            *((name, "i32") for name in sizes),
        ),
        constants={"INTERLEAVED": desc.interleaved, "BLOCK_N": config.block_n, "BLOCK_F": config.block_f},
        options={},
    )


def refuse(spec: RopeSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    if spec.dtype not in DTYPES:
        return f"dtype {spec.dtype} is not one of {', '.join(DTYPES)}"
    return "" if spec.head_dim <= MAX_HEAD_DIM else f"a head dim of {spec.head_dim} is above {MAX_HEAD_DIM}"


def make_rope(spec: RopeSpec, soc: Soc, launcher: Launcher) -> Callable[..., None]:
    """rope(q_TND, k_TKD, positions_T, cos_sin_PR), in place. q and k may be strided in T."""
    head_dim, half = spec.head_dim, spec.rotary_dim // 2
    desc = RopeDesc(rotary_half=half, interleaved=spec.interleaved, dtype=spec.dtype)
    launch, grid = launcher.prepare(case(desc)), (soc.vector_cores,)

    def rope(q_TND: torch.Tensor, k_TKD: torch.Tensor, positions_T: torch.Tensor, cos_sin_PR: torch.Tensor) -> None:
        tokens, heads = q_TND.shape[:2]
        if tokens:
            strides = (q_TND.stride(0), k_TKD.stride(0))
            tensors = (q_TND, k_TKD, positions_T, cos_sin_PR)
            launch(grid, *tensors, tokens, *strides, heads, k_TKD.shape[1], head_dim, half)

    return rope

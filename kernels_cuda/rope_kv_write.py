"""Rotary embedding of q (in place) and k, fused with writing k and v into paged KV: one program per (token, head).

Heads of a token in order: N of q, K of k, K of v. Suffixes: T tokens, N query heads, K KV heads, D head
dim, F half of the rotary dim, P positions in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import CanonicalKV, RopeKVWriteSpec

DTYPES = ("bfloat16", "float16", "float32")
MAX_HEAD_DIM = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeKVWriteDesc:
    """What a configuration depends on."""

    head_dim: int
    interleaved: bool
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeKVWriteConfig:
    """`block_d`: the head dim rounded up to a power of two."""

    block_d: int
    num_warps: int


def pick_config(desc: RopeKVWriteDesc) -> RopeKVWriteConfig:
    """A head is short: one warp."""
    return RopeKVWriteConfig(block_d=max(32, triton.next_power_of_2(desc.head_dim)), num_warps=1)


def descriptions() -> Iterator[RopeKVWriteDesc]:
    """One description for every configuration that `pick_config` can return, with each pairing."""
    for dtype in DTYPES:
        for interleaved in (False, True):
            for head_dim in (32, 64, 128, 256, 512):
                yield RopeKVWriteDesc(head_dim=head_dim, interleaved=interleaved, dtype=dtype)


@triton.jit(do_not_specialize=["num_heads", "num_kv_heads", "rotary_half"])
def rope_kv_write_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    positions_ptr,
    table_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slots_ptr,
    q_stride,
    k_stride,
    v_stride,
    num_heads,
    num_kv_heads,
    head_dim,
    rotary_half,
    INTERLEAVED: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    kv_head = tl.where(head < num_heads + num_kv_heads, head - num_heads, head - num_heads - num_kv_heads)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    cache_offset = (slot * num_kv_heads + kv_head) * head_dim
    if head >= num_heads + num_kv_heads:
        offset_D = tl.arange(0, BLOCK_D)
        inside_D = offset_D < head_dim
        v_D = tl.load(v_ptr + token * v_stride + kv_head * head_dim + offset_D, mask=inside_D)
        tl.store(v_cache_ptr + cache_offset + offset_D, v_D, mask=inside_D)
    else:
        if head < num_heads:
            source = q_ptr + token * q_stride + head * head_dim
            target = source
            passes_until = 0  # what of q does not rotate is in its place already
        else:
            source = k_ptr + token * k_stride + kv_head * head_dim
            target = k_cache_ptr + cache_offset
            passes_until = head_dim
        offset_F = tl.arange(0, BLOCK_D // 2)
        rotates_F = offset_F < rotary_half
        table = table_ptr + tl.load(positions_ptr + token).to(tl.int64) * (2 * rotary_half)
        cos_F = tl.load(table + offset_F, mask=rotates_F, other=0.0)
        sin_F = tl.load(table + rotary_half + offset_F, mask=rotates_F, other=0.0)
        if INTERLEAVED:
            first_F = 2 * offset_F
            second_F = 2 * offset_F + 1
        else:
            first_F = offset_F
            second_F = offset_F + rotary_half
        a_F = tl.load(source + first_F, mask=rotates_F, other=0.0).to(tl.float32)
        b_F = tl.load(source + second_F, mask=rotates_F, other=0.0).to(tl.float32)
        rest_D = 2 * rotary_half + tl.arange(0, BLOCK_D)
        passes_D = rest_D < passes_until
        x_D = tl.load(source + rest_D, mask=passes_D)
        dtype: tl.constexpr = q_ptr.dtype.element_ty
        tl.store(target + first_F, (a_F * cos_F - b_F * sin_F).to(dtype), mask=rotates_F)
        tl.store(target + second_F, (b_F * cos_F + a_F * sin_F).to(dtype), mask=rotates_F)
        tl.store(target + rest_D, x_D, mask=passes_D)


def case(desc: RopeKVWriteDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config, pointer = pick_config(desc), f"{POINTERS[desc.dtype]}:16"
    tensors = ("q_ptr", "k_ptr", "v_ptr")
    caches = ("k_cache_ptr", "v_cache_ptr")
    return KernelCase(
        kernel=rope_kv_write_kernel,
        signature=(
            *((name, pointer) for name in tensors),
            ("positions_ptr", "*i32"),
            ("table_ptr", "*fp32"),
            *((name, pointer) for name in caches),
            ("slots_ptr", "*i32"),
            ("q_stride", "i32:16"),
            ("k_stride", "i32:16"),
            ("v_stride", "i32:16"),
            ("num_heads", "i32"),
            ("num_kv_heads", "i32"),
            ("head_dim", "i32:16"),
            ("rotary_half", "i32"),
        ),
        constants={"INTERLEAVED": desc.interleaved, "BLOCK_D": config.block_d},
        options={"num_warps": config.num_warps},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    yield from ((case(desc), frozenset()) for desc in descriptions())


def refuse(spec: RopeKVWriteSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    if spec.head_dim % 16 or spec.head_dim > MAX_HEAD_DIM:
        return f"a head dim of {spec.head_dim} is not a multiple of 16 up to {MAX_HEAD_DIM}"
    return ""


def make_rope_kv_write(spec: RopeKVWriteSpec, launcher: Launcher) -> Callable[..., None]:
    """rope_kv_write(q_TND, k_TKD, v_TKD, positions_T, cos_sin_PR, kv, slots_T). q, k, v may be strided in T."""
    desc = RopeKVWriteDesc(head_dim=spec.head_dim, interleaved=spec.rope.interleaved, dtype=spec.dtype)
    launch = launcher.prepare(case(desc))
    num_kv_heads, head_dim, rotary_half = spec.num_kv_heads, spec.head_dim, spec.rope.rotary_dim // 2

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
        if not tokens:
            return
        tensors = (q_TND, k_TKD, v_TKD, positions_T, cos_sin_PR, kv.k_BSKD, kv.v_BSKD, slots_T)
        strides = (q_TND.stride(0), k_TKD.stride(0), v_TKD.stride(0))
        heads = num_heads + 2 * num_kv_heads
        launch((tokens, heads), *tensors, *strides, num_heads, num_kv_heads, head_dim, rotary_half)

    return rope_kv_write

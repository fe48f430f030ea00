"""Writing K and V of new tokens into paged KV: block copies of all heads of a token. Cores take tokens in turn.

Suffixes: T tokens, K KV heads, D head dim, X values of K or V of a token (or a piece of them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import CanonicalKV, KVWriteSpec

DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class KVWriteDesc:
    """What a configuration depends on."""

    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KVWriteConfig:
    """`block_x`: values that are copied at a time."""

    block_x: int


def pick_config(desc: KVWriteDesc) -> KVWriteConfig:
    """16 heads of 64, or 8 of 128: one copy for most models."""
    return KVWriteConfig(block_x=1024)


def descriptions() -> Iterator[KVWriteDesc]:
    """One description for every configuration that `pick_config` can return."""
    yield from (KVWriteDesc(dtype=dtype) for dtype in DTYPES)


@triton.jit
def copy_values(source_ptr, target_ptr, width, BLOCK_X: tl.constexpr):
    """`width` values in a row."""
    for start in range(0, width, BLOCK_X):
        x = start + tl.arange(0, BLOCK_X)
        tl.store(target_ptr + x, tl.load(source_ptr + x, mask=x < width), mask=x < width)


@triton.jit(do_not_specialize=["tokens", "k_stride", "v_stride", "width"])
def kv_write_kernel(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slots_ptr, tokens, k_stride, v_stride, width, BLOCK_X: tl.constexpr
):
    for token in range(tl.program_id(0), tokens, tl.num_programs(0)):
        at = tl.load(slots_ptr + token).to(tl.int64) * width
        copy_values(k_ptr + k_stride.to(tl.int64) * token, k_cache_ptr + at, width, BLOCK_X)
        copy_values(v_ptr + v_stride.to(tl.int64) * token, v_cache_ptr + at, width, BLOCK_X)


def case(desc: KVWriteDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    pointer = POINTERS[desc.dtype]
    return KernelCase(
        kernel=kv_write_kernel,
        signature=(
            *((name, pointer) for name in ("k_ptr", "v_ptr", "k_cache_ptr", "v_cache_ptr")),
            ("slots_ptr", "*i32"),
            *((name, "i32") for name in ("tokens", "k_stride", "v_stride", "width")),
        ),
        constants={"BLOCK_X": pick_config(desc).block_x},
        options={},
    )


def refuse(spec: KVWriteSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    return "" if spec.dtype in DTYPES else f"dtype {spec.dtype} is not one of {', '.join(DTYPES)}"


def make_kv_write(spec: KVWriteSpec, soc: Soc, launcher: Launcher) -> Callable[..., None]:
    """kv_write(k_TKD, v_TKD, kv, slots_T). k and v may be strided in T."""
    launch, grid = launcher.prepare(case(KVWriteDesc(dtype=spec.dtype))), (soc.vector_cores,)
    width = spec.num_kv_heads * spec.head_dim

    def kv_write(k_TKD: torch.Tensor, v_TKD: torch.Tensor, kv: CanonicalKV, slots_T: torch.Tensor) -> None:
        tokens = k_TKD.shape[0]
        if tokens:
            tensors = (k_TKD, v_TKD, kv.k_BSKD, kv.v_BSKD, slots_T)
            launch(grid, *tensors, tokens, k_TKD.stride(0), v_TKD.stride(0), width)

    return kv_write

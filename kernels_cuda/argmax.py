"""The token of the largest logit: the best of each part of the vocabulary, then the best of the parts.

A candidate is an int64 key, the score's order in the high word and the token's reverse order in the low one,
so the largest key is the best score with the lowest token of equals. `sample` ends in the same two steps.

Suffixes: R rows, V vocabulary, C parts of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.kernel_case import KernelCase, Launcher
from isoinfer.backends.ops import LogitsSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgmaxDesc:
    """What a configuration depends on. `aligned`: rows start and end at a multiple of 16 elements."""

    aligned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgmaxConfig:
    """`block_v`: tokens of one program."""

    block_v: int
    num_warps: int


def pick_config(desc: ArgmaxDesc) -> ArgmaxConfig:
    """16 logits a thread: 32 programs for one row of 128k, enough rows of a batch to fill a large GPU."""
    return ArgmaxConfig(block_v=4096, num_warps=8)


def descriptions() -> Iterator[ArgmaxDesc]:
    """One description for every case of `argmax_kernel`."""
    yield from (ArgmaxDesc(aligned=aligned) for aligned in (True, False))


@triton.jit
def ordered_image(x):
    """float32 as int32 of the same order. Both zeros are equal."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def best_key(x_V, token_V, inside_V):
    """The key of the best of `x_V` (float32) at tokens `token_V`. At least one is inside."""
    image_V = ordered_image(x_V)
    best = tl.max(tl.where(inside_V, image_V, -0x80000000), axis=0)
    token = tl.min(tl.where(inside_V & (image_V == best), token_V, 0x7FFFFFFF), axis=0)
    return (best.to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)


@triton.jit(do_not_specialize=["num_parts"])
def argmax_kernel(logits_ptr, key_ptr, row_stride, vocab_size, num_parts, BLOCK_V: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token_V = part * BLOCK_V + tl.arange(0, BLOCK_V)
    inside_V = token_V < vocab_size
    logits_V = tl.load(logits_ptr + row * row_stride + token_V, mask=inside_V, other=float("-inf"))
    tl.store(key_ptr + row * num_parts + part, best_key(logits_V, token_V, inside_V))


@triton.jit(do_not_specialize=["num_parts"])
def best_part_kernel(key_ptr, token_ptr, num_parts, BLOCK_C: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    best_C = tl.full([BLOCK_C], -0x8000000000000000, tl.int64)
    for start in range(0, num_parts, BLOCK_C):
        part_C = start + tl.arange(0, BLOCK_C)
        key_C = tl.load(key_ptr + row * num_parts + part_C, mask=part_C < num_parts, other=-0x8000000000000000)
        best_C = tl.maximum(best_C, key_C)
    best = tl.max(best_C, axis=0)
    tl.store(token_ptr + row, (0x7FFFFFFF - (best & 0x7FFFFFFF)).to(tl.int32))


def sizes(aligned: bool) -> tuple[tuple[str, str], tuple[str, str]]:
    """The signature's `row_stride` and `vocab_size`."""
    kind = "i32:16" if aligned else "i32"
    return ("row_stride", kind), ("vocab_size", kind)


def case(desc: ArgmaxDesc) -> KernelCase:
    """The first kernel as it is launched for `desc`."""
    config = pick_config(desc)
    return KernelCase(
        kernel=argmax_kernel,
        signature=(("logits_ptr", "*fp32:16"), ("key_ptr", "*i64:16"), *sizes(desc.aligned), ("num_parts", "i32")),
        constants={"BLOCK_V": config.block_v},
        options={"num_warps": config.num_warps},
    )


def best_part_case() -> KernelCase:
    """The second kernel."""
    return KernelCase(
        kernel=best_part_kernel,
        signature=(("key_ptr", "*i64:16"), ("token_ptr", "*i32:16"), ("num_parts", "i32")),
        constants={"BLOCK_C": 128},
        options={"num_warps": 1},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    yield from ((each, frozenset()) for each in (*map(case, descriptions()), best_part_case()))


def refuse(spec: LogitsSpec) -> str:
    """Every vocabulary is served."""
    return ""


def make_argmax(spec: LogitsSpec, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """argmax(logits_RV float32) -> token_R int32. logits may be strided in R."""
    desc, vocab_size = ArgmaxDesc(aligned=spec.vocab_size % 16 == 0), spec.vocab_size
    launch, choose = launcher.prepare(case(desc)), launcher.prepare(best_part_case())
    parts = -(-vocab_size // pick_config(desc).block_v)

    def argmax(logits_RV: torch.Tensor) -> torch.Tensor:
        rows = logits_RV.shape[0]
        token_R = logits_RV.new_empty(rows, dtype=torch.int32)
        if rows:
            key_RC = logits_RV.new_empty((rows, parts), dtype=torch.int64)
            launch((rows, parts), logits_RV, key_RC, logits_RV.stride(0), vocab_size, parts)
            choose((rows,), key_RC, token_R, parts)
        return token_R

    return argmax

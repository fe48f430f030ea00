"""The token of the largest logit: the best of each part of the vocabulary, then the best of a row's parts.

Cores take parts of rows in turn, so that one row keeps many of them busy. `sample` ends in the same two steps.

Suffixes: R rows, V vocabulary, C parts of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import KernelCase, Launcher
from isoinfer.backends.ops import LogitsSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgmaxDesc:
    """Nothing to choose by: every vocabulary takes one configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgmaxConfig:
    """`block_v`: tokens of one part. `block_c`: parts that are compared at a time."""

    block_v: int
    block_c: int


def pick_config(desc: ArgmaxDesc) -> ArgmaxConfig:
    """16 KB of logits a part: long enough to read fast, and 32 parts in a row of 128k."""
    return ArgmaxConfig(block_v=4096, block_c=128)


def descriptions() -> Iterator[ArgmaxDesc]:
    """The only one."""
    yield ArgmaxDesc()


@triton.jit
def best_token(x_V, token_V):
    """The largest of `x_V` and the lowest token that has it (2^31 - 1 if it is no number)."""
    best = tl.max(x_V, axis=0)
    return best, tl.min(tl.where(x_V == best, token_V, 0x7FFFFFFF), axis=0)


@triton.jit(do_not_specialize=["rows", "row_stride", "vocab_size", "num_parts"])
def argmax_kernel(logits_ptr, best_ptr, token_ptr, rows, row_stride, vocab_size, num_parts, BLOCK_V: tl.constexpr):
    for item in range(tl.program_id(0), rows * num_parts, tl.num_programs(0)):
        row, part = item // num_parts, item % num_parts
        token_V = part * BLOCK_V + tl.arange(0, BLOCK_V)
        logits_V = tl.load(
            logits_ptr + row.to(tl.int64) * row_stride + token_V, mask=token_V < vocab_size, other=float("-inf")
        )
        best, token = best_token(logits_V, token_V)
        tl.store(best_ptr + item, best)
        tl.store(token_ptr + item, token)


@triton.jit(do_not_specialize=["rows", "vocab_size", "num_parts"])
def best_part_kernel(best_ptr, token_ptr, out_ptr, rows, vocab_size, num_parts, BLOCK_C: tl.constexpr):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        best_C = tl.full([BLOCK_C], float("-inf"), tl.float32)
        for start in range(0, num_parts, BLOCK_C):
            part_C = start + tl.arange(0, BLOCK_C)
            x_C = tl.load(best_ptr + row * num_parts + part_C, mask=part_C < num_parts, other=float("-inf"))
            best_C = tl.maximum(best_C, x_C)
        best = tl.max(best_C, axis=0)
        lowest_C = tl.full([BLOCK_C], 0x7FFFFFFF, tl.int32)
        for start in range(0, num_parts, BLOCK_C):
            part_C = start + tl.arange(0, BLOCK_C)
            inside_C = part_C < num_parts
            x_C = tl.load(best_ptr + row * num_parts + part_C, mask=inside_C, other=float("-inf"))
            token_C = tl.load(token_ptr + row * num_parts + part_C, mask=inside_C, other=0x7FFFFFFF)
            lowest_C = tl.minimum(lowest_C, tl.where(x_C == best, token_C, 0x7FFFFFFF))
        tl.store(out_ptr + row, tl.minimum(tl.min(lowest_C, axis=0), vocab_size - 1))


def case(desc: ArgmaxDesc) -> KernelCase:
    """The first kernel as it is launched."""
    return KernelCase(
        kernel=argmax_kernel,
        signature=(
            ("logits_ptr", "*fp32"),
            ("best_ptr", "*fp32"),
            ("token_ptr", "*i32"),
            ("rows", "i32"),
            ("row_stride", "i32"),
            ("vocab_size", "i32"),
            ("num_parts", "i32"),
        ),
        constants={"BLOCK_V": pick_config(desc).block_v},
        options={},
    )


def best_part_case() -> KernelCase:
    """The second kernel."""
    return KernelCase(
        kernel=best_part_kernel,
        signature=(
            ("best_ptr", "*fp32"),
            ("token_ptr", "*i32"),
            ("out_ptr", "*i32"),
            ("rows", "i32"),
            ("vocab_size", "i32"),
            ("num_parts", "i32"),
        ),
        constants={"BLOCK_C": pick_config(ArgmaxDesc()).block_c},
        options={},
    )


def cases() -> Iterator[KernelCase]:
    """Every case of this file."""
    yield from map(case, descriptions())
    yield best_part_case()


def refuse(spec: LogitsSpec) -> str:
    """Every vocabulary is served."""
    return ""


def make_argmax(spec: LogitsSpec, soc: Soc, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """argmax(logits_RV float32) -> token_R int32. logits may be strided in R."""
    launch, choose = launcher.prepare(case(ArgmaxDesc())), launcher.prepare(best_part_case())
    grid, vocab_size = (soc.vector_cores,), spec.vocab_size
    parts = -(-vocab_size // pick_config(ArgmaxDesc()).block_v)

    def argmax(logits_RV: torch.Tensor) -> torch.Tensor:
        rows = logits_RV.shape[0]
        out_R = logits_RV.new_empty(rows, dtype=torch.int32)
        if rows:
            best_RC = logits_RV.new_empty((rows, parts))
            token_RC = logits_RV.new_empty((rows, parts), dtype=torch.int32)
            launch(grid, logits_RV, best_RC, token_RC, rows, logits_RV.stride(0), vocab_size, parts)
            choose(grid, best_RC, token_RC, out_R, rows, vocab_size, parts)
        return out_R

    return argmax

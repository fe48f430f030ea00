"""Log-probabilities, ranks and the best tokens. Cores take rows in turn.

Each of a row's best tokens is found by a pass over the row: the first, in the order (logit descending, token
ascending), of those behind the one before. On vectors the kernel compares floats, tokens too, which are below 2^24.

Suffixes: R rows, V vocabulary (or a part of it), X best tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import KernelCase, Launcher
from isoinfer.backends.ops import LogprobsSpec
from isoinfer.kernels_ascend.token_filter import MAX_VOCAB, row_best

NO_TOKEN: tl.constexpr = tl.constexpr(3.0e38)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobsDesc:
    """Nothing to choose by: every vocabulary takes one configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobsConfig:
    """A core reads `block_v` logits of its row at a time."""

    block_v: int


def pick_config(desc: LogprobsDesc) -> LogprobsConfig:
    """As the token filter: several tiles live at once."""
    return LogprobsConfig(block_v=2048)


def descriptions() -> Iterator[LogprobsDesc]:
    """The only one."""
    yield LogprobsDesc()


@triton.jit
def weigh_row(logits_ptr, vocab_size, base, chosen, BLOCK_V: tl.constexpr):
    """Sum of exp(logit - base), and the number of logits above `chosen`, as float32."""
    weight_V = tl.zeros([BLOCK_V], tl.float32)
    count_V = tl.zeros([BLOCK_V], tl.float32)
    for start in range(0, vocab_size, BLOCK_V):
        token_V = start + tl.arange(0, BLOCK_V)
        logits_V = tl.load(logits_ptr + token_V, mask=token_V < vocab_size, other=float("-inf"))
        weight_V += tl.exp(logits_V - base)
        count_V += tl.where(logits_V > chosen, 1.0, 0.0)
    return tl.sum(weight_V, axis=0), tl.sum(count_V, axis=0)


@triton.jit
def next_best(logits_ptr, vocab_size, value, token, BLOCK_V: tl.constexpr):
    """The logit and the token (as float32) that come right behind `value` of `token`."""
    best_V = tl.full([BLOCK_V], float("-inf"), tl.float32)
    first_V = tl.full([BLOCK_V], NO_TOKEN, tl.float32)
    for start in range(0, vocab_size, BLOCK_V):
        index_V = start + tl.arange(0, BLOCK_V)
        token_V = index_V.to(tl.float32)
        logits_V = tl.load(logits_ptr + index_V, mask=index_V < vocab_size, other=float("nan"))
        behind_V = (logits_V < value) | ((logits_V == value) & (token_V > token))
        taken_V = behind_V & ((logits_V > best_V) | (first_V == NO_TOKEN))
        best_V = tl.where(taken_V, logits_V, best_V)
        first_V = tl.where(taken_V, token_V, first_V)
    best = tl.max(best_V, axis=0)
    return best, tl.min(tl.where(best_V == best, first_V, NO_TOKEN), axis=0)


@triton.jit(do_not_specialize=["rows", "row_stride", "vocab_size", "num"])
def logprobs_kernel(
    all_logits_ptr,
    token_ptr,
    logprob_ptr,
    rank_ptr,
    top_ids_ptr,
    top_logprobs_ptr,
    rows,
    row_stride,
    vocab_size,
    num,
    BLOCK_V: tl.constexpr,
):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        logits_ptr = all_logits_ptr + row_stride.to(tl.int64) * row
        chosen = tl.load(logits_ptr + tl.load(token_ptr + row))
        largest = row_best(logits_ptr, vocab_size, 1.0, BLOCK_V)
        base = tl.where(largest == float("-inf"), 0.0, largest)
        weight, above = weigh_row(logits_ptr, vocab_size, base, chosen, BLOCK_V)
        lse = largest + tl.log(weight)
        tl.store(logprob_ptr + row, chosen - lse)
        tl.store(rank_ptr + row, above.to(tl.int32) + 1)
        value = float("inf")
        token = -1.0
        for x in range(num):
            value, token = next_best(logits_ptr, vocab_size, value, token, BLOCK_V)
            tl.store(top_ids_ptr + row * num + x, token.to(tl.int32))
            tl.store(top_logprobs_ptr + row * num + x, value - lse)


def case(desc: LogprobsDesc) -> KernelCase:
    """The kernel as it is launched."""
    return KernelCase(
        kernel=logprobs_kernel,
        signature=(
            ("all_logits_ptr", "*fp32"),
            ("token_ptr", "*i32"),
            ("logprob_ptr", "*fp32"),
            ("rank_ptr", "*i32"),
            ("top_ids_ptr", "*i32"),
            ("top_logprobs_ptr", "*fp32"),
            *((name, "i32") for name in ("rows", "row_stride", "vocab_size", "num")),
        ),
        constants={"BLOCK_V": pick_config(desc).block_v},
        options={},
    )


def refuse(spec: LogprobsSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    return "" if spec.vocab_size < MAX_VOCAB else "a vocabulary from 2^24 tokens on cannot be counted in float32"


def make_logprobs(
    spec: LogprobsSpec, soc: Soc, launcher: Launcher
) -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """logprobs(logits_RV, token_R) -> (logprob_R, rank_R, top_ids_RX, top_logprobs_RX). Strided in R or not."""
    launch, grid = launcher.prepare(case(LogprobsDesc())), (soc.vector_cores,)
    num, vocab_size = spec.num, spec.vocab_size

    def logprobs(
        logits_RV: torch.Tensor, token_R: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        rows = logits_RV.shape[0]
        logprob_R, rank_R = logits_RV.new_empty(rows), logits_RV.new_empty(rows, dtype=torch.int32)
        top_ids_RX = logits_RV.new_empty((rows, num), dtype=torch.int32)
        top_logprobs_RX = logits_RV.new_empty((rows, num))
        if rows:
            out = (logprob_R, rank_R, top_ids_RX, top_logprobs_RX)
            launch(grid, logits_RV, token_R, *out, rows, logits_RV.stride(0), vocab_size, num)
        return logprob_R, rank_R, top_ids_RX, top_logprobs_RX

    return logprobs

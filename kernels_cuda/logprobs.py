"""Log-probabilities, ranks and the best tokens: each part of the vocabulary is read once, then parts are merged.

A part yields its largest logit, its sum of exponentials, how many logits exceed the chosen token's, and its
best `num` as the int64 keys of `argmax`. The merge picks the best `num` of all parts' keys.

Suffixes: R rows, V vocabulary, C parts, X best tokens, K keys of a row (C * X).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.kernel_case import KernelCase, Launcher
from isoinfer.backends.ops import LogprobsSpec
from isoinfer.kernels_cuda.argmax import ordered_image, sizes
from isoinfer.kernels_cuda.token_filter import image_value

MAX_NUM = 128
MAX_KEYS = 8192
MIN_KEY: tl.constexpr = tl.constexpr(-0x8000000000000000)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobsDesc:
    """What a configuration depends on. `aligned`: rows start and end at a multiple of 16 elements."""

    aligned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobsConfig:
    """`block_v`: tokens of one program."""

    block_v: int
    num_warps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeDesc:
    """`num_keys`: keys of a row, at most MAX_KEYS."""

    num_keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeConfig:
    """`block_k`: room for keys."""

    block_k: int
    num_warps: int


def pick_config(desc: LogprobsDesc) -> LogprobsConfig:
    """8 keys a thread: they stay in registers while the best are taken out one by one."""
    return LogprobsConfig(block_v=4096, num_warps=16)


def pick_merge_config(desc: MergeDesc) -> MergeConfig:
    """A few tokens of a large vocabulary fit in 1024 keys, which one warp group holds."""
    return MergeConfig(block_k=1024, num_warps=4) if desc.num_keys <= 1024 else MergeConfig(block_k=8192, num_warps=16)


def descriptions() -> Iterator[LogprobsDesc]:
    """One description for every case of `logprobs_kernel`."""
    yield from (LogprobsDesc(aligned=aligned) for aligned in (True, False))


def merge_descriptions() -> Iterator[MergeDesc]:
    """One description for every case of `merge_kernel`."""
    yield from (MergeDesc(num_keys=num_keys) for num_keys in (1024, MAX_KEYS))


@triton.jit(do_not_specialize=["num_parts", "num"])
def logprobs_kernel(
    logits_ptr,
    token_ptr,
    max_ptr,
    sum_ptr,
    greater_ptr,
    key_ptr,
    row_stride,
    vocab_size,
    num_parts,
    num,
    BLOCK_V: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    logits_ptr += row * row_stride
    token_V = part * BLOCK_V + tl.arange(0, BLOCK_V)
    inside_V = token_V < vocab_size
    logits_V = tl.load(logits_ptr + token_V, mask=inside_V, other=float("-inf"))
    chosen = tl.load(logits_ptr + tl.load(token_ptr + row))
    largest = tl.max(logits_V, axis=0)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    out = row * num_parts + part
    tl.store(max_ptr + out, largest)
    tl.store(sum_ptr + out, tl.sum(tl.exp(logits_V - base), axis=0))
    tl.store(greater_ptr + out, tl.sum((logits_V > chosen).to(tl.int32), axis=0))
    key_V = (ordered_image(logits_V).to(tl.int64) << 32) | (0x7FFFFFFF - token_V).to(tl.int64)
    key_V = tl.where(inside_V, key_V, MIN_KEY)
    for x in range(num):
        best = tl.max(key_V, axis=0)
        tl.store(key_ptr + out * num + x, best)
        key_V = tl.where(key_V == best, MIN_KEY, key_V)


@triton.jit(do_not_specialize=["num_parts", "num"])
def merge_kernel(
    logits_ptr,
    token_ptr,
    max_ptr,
    sum_ptr,
    greater_ptr,
    key_ptr,
    logprob_ptr,
    rank_ptr,
    top_ids_ptr,
    top_logprobs_ptr,
    row_stride,
    num_parts,
    num,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    largest_C = tl.full([BLOCK_C], float("-inf"), tl.float32)
    for start in range(0, num_parts, BLOCK_C):
        part_C = start + tl.arange(0, BLOCK_C)
        largest_C = tl.maximum(
            largest_C,
            tl.load(max_ptr + row * num_parts + part_C, mask=part_C < num_parts, other=float("-inf")),
        )
    largest = tl.max(largest_C, axis=0)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    sum_C = tl.zeros([BLOCK_C], tl.float32)
    greater_C = tl.zeros([BLOCK_C], tl.int32)
    for start in range(0, num_parts, BLOCK_C):
        part_C = start + tl.arange(0, BLOCK_C)
        inside_C, at_C = part_C < num_parts, row * num_parts + part_C
        part_largest_C = tl.load(max_ptr + at_C, mask=inside_C, other=float("-inf"))
        part_sum_C = tl.load(sum_ptr + at_C, mask=inside_C, other=0.0)
        sum_C += tl.where(part_sum_C > 0, part_sum_C * tl.exp(part_largest_C - base), 0.0)
        greater_C += tl.load(greater_ptr + at_C, mask=inside_C, other=0)
    lse = largest + tl.log(tl.sum(sum_C, axis=0))
    chosen = tl.load(logits_ptr + row * row_stride + tl.load(token_ptr + row))
    tl.store(logprob_ptr + row, chosen - lse)
    tl.store(rank_ptr + row, 1 + tl.sum(greater_C, axis=0))
    if num > 0:
        index_K = tl.arange(0, BLOCK_K)
        num_keys = num_parts * num
        key_K = tl.load(key_ptr + row * num_keys + index_K, mask=index_K < num_keys, other=MIN_KEY)
        for x in range(num):
            best = tl.max(key_K, axis=0)
            tl.store(top_ids_ptr + row * num + x, (0x7FFFFFFF - (best & 0x7FFFFFFF)).to(tl.int32))
            tl.store(top_logprobs_ptr + row * num + x, image_value((best >> 32).to(tl.int32)) - lse)
            key_K = tl.where(key_K == best, MIN_KEY, key_K)


def case(desc: LogprobsDesc) -> KernelCase:
    """The kernel of the parts as it is launched for `desc`."""
    config = pick_config(desc)
    return KernelCase(
        kernel=logprobs_kernel,
        signature=(
            ("logits_ptr", "*fp32:16"),
            ("token_ptr", "*i32"),
            ("max_ptr", "*fp32:16"),
            ("sum_ptr", "*fp32:16"),
            ("greater_ptr", "*i32:16"),
            ("key_ptr", "*i64:16"),
            *sizes(desc.aligned),
            ("num_parts", "i32"),
            ("num", "i32"),
        ),
        constants={"BLOCK_V": config.block_v},
        options={"num_warps": config.num_warps},
    )


def merge_case(desc: MergeDesc) -> KernelCase:
    """The kernel that merges parts as it is launched for `desc`."""
    config = pick_merge_config(desc)
    return KernelCase(
        kernel=merge_kernel,
        signature=(
            ("logits_ptr", "*fp32:16"),
            ("token_ptr", "*i32"),
            ("max_ptr", "*fp32:16"),
            ("sum_ptr", "*fp32:16"),
            ("greater_ptr", "*i32:16"),
            ("key_ptr", "*i64:16"),
            ("logprob_ptr", "*fp32:16"),
            ("rank_ptr", "*i32:16"),
            ("top_ids_ptr", "*i32:16"),
            ("top_logprobs_ptr", "*fp32:16"),
            ("row_stride", "i32"),
            ("num_parts", "i32"),
            ("num", "i32"),
        ),
        constants={"BLOCK_C": 128, "BLOCK_K": config.block_k},
        options={"num_warps": config.num_warps},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    for each in (*map(case, descriptions()), *map(merge_case, merge_descriptions())):
        yield each, frozenset()


def num_parts(spec: LogprobsSpec) -> int:
    """Programs that share a row."""
    return -(-spec.vocab_size // pick_config(LogprobsDesc(aligned=True)).block_v)


def refuse(spec: LogprobsSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    if spec.num > MAX_NUM:
        return f"{spec.num} best tokens are more than {MAX_NUM}, which are taken out one by one"
    keys = num_parts(spec) * spec.num
    return "" if keys <= MAX_KEYS else f"{spec.num} best tokens of {num_parts(spec)} parts do not fit one program"


def make_logprobs(
    spec: LogprobsSpec, launcher: Launcher
) -> Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """logprobs(logits_RV, token_R) -> (logprob_R, rank_R, top_ids_RX, top_logprobs_RX). Strided in R or not."""
    parts, num, vocab_size = num_parts(spec), spec.num, spec.vocab_size
    launch = launcher.prepare(case(LogprobsDesc(aligned=vocab_size % 16 == 0)))
    merge = launcher.prepare(merge_case(MergeDesc(num_keys=parts * num)))

    def logprobs(
        logits_RV: torch.Tensor, token_R: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        rows, stride = logits_RV.shape[0], logits_RV.stride(0)
        logprob_R = logits_RV.new_empty(rows)
        rank_R = logits_RV.new_empty(rows, dtype=torch.int32)
        top_ids_RX = logits_RV.new_empty((rows, num), dtype=torch.int32)
        top_logprobs_RX = logits_RV.new_empty((rows, num))
        if rows:
            max_RC, sum_RC = logits_RV.new_empty((rows, parts)), logits_RV.new_empty((rows, parts))
            greater_RC = logits_RV.new_empty((rows, parts), dtype=torch.int32)
            key_RK = logits_RV.new_empty((rows, parts * num), dtype=torch.int64)
            partial = (max_RC, sum_RC, greater_RC, key_RK)
            launch((rows, parts), logits_RV, token_R, *partial, stride, vocab_size, parts, num)
            out = (logprob_R, rank_R, top_ids_RX, top_logprobs_RX)
            merge((rows,), logits_RV, token_R, *partial, *out, stride, parts, num)
        return logprob_R, rank_R, top_ids_RX, top_logprobs_RX

    return logprobs

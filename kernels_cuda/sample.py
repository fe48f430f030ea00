"""Gumbel-max sampling: what the filters keep of a row, then the best noisy score of each part, then of all.

The noise is that of `backends/ops/philox.py`: lane token % 4 of Philox4x32-10 at counter (token // 4, position,
stream, 0) with the seed as key. Logarithms are libdevice's, not the approximate unit's, whose absolute error
is as large as the logarithm of a uniform near 1.

Suffixes: R rows, V vocabulary, G groups of four tokens, C parts of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.kernel_case import KernelCase, Launcher
from isoinfer.backends.ops import LogitsSpec
from isoinfer.backends.ops.philox import SAMPLE_STREAM
from isoinfer.kernels_cuda import token_filter
from isoinfer.kernels_cuda.argmax import best_key, best_part_case, sizes
from isoinfer.kernels_cuda.token_filter import FilterDesc, load_scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDesc:
    """What a configuration depends on. `aligned`: rows start and end at a multiple of 16 elements."""

    aligned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleConfig:
    """`block_v`: tokens of one program."""

    block_v: int
    num_warps: int


def pick_config(desc: SampleDesc) -> SampleConfig:
    """8 tokens, so two counters, a thread: random numbers cost more than the logits they are added to."""
    return SampleConfig(block_v=2048, num_warps=8)


def descriptions() -> Iterator[SampleDesc]:
    """One description for every case of `draw_kernel`."""
    yield from (SampleDesc(aligned=aligned) for aligned in (True, False))


@triton.jit
def uniform(word):
    """Float32 in (0, 1) from the top 23 bits of a uint32."""
    return ((word >> 9).to(tl.int32).to(tl.float32) + 0.5) * 1.1920928955078125e-07


@triton.jit
def gumbel(seed, position, group_G, STREAM: tl.constexpr):
    """Noise of the four tokens of each group, in the order of tokens."""
    zero_G = tl.zeros_like(group_G)
    word_0G, word_1G, word_2G, word_3G = tl.philox(seed, group_G, zero_G + position, zero_G + STREAM, zero_G)
    word_V = tl.interleave(tl.interleave(word_0G, word_2G), tl.interleave(word_1G, word_3G))
    return -tl.log(-tl.log(uniform(word_V)))


@triton.jit(do_not_specialize=["num_parts"])
def draw_kernel(
    logits_ptr,
    temperature_ptr,
    floor_ptr,
    border_ptr,
    seed_ptr,
    position_ptr,
    key_ptr,
    row_stride,
    vocab_size,
    num_parts,
    STREAM: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperature_ptr + row)
    greedy = temperature == 0
    token_V = part * BLOCK_V + tl.arange(0, BLOCK_V)
    score_V = load_scaled(logits_ptr + row * row_stride, token_V, vocab_size, tl.where(greedy, 1.0, temperature))
    if temperature != 0:
        floor, border = tl.load(floor_ptr + row), tl.load(border_ptr + row)
        kept_V = (score_V > floor) | ((score_V == floor) & (token_V <= border))
        if tl.max(kept_V.to(tl.int32), axis=0) > 0:
            group_G = part * (BLOCK_V // 4) + tl.arange(0, BLOCK_V // 4)
            score_V += gumbel(tl.load(seed_ptr + row), tl.load(position_ptr + row), group_G, STREAM)
        score_V = tl.where(kept_V, score_V, float("-inf"))
    tl.store(key_ptr + row * num_parts + part, best_key(score_V, token_V, token_V < vocab_size))


def case(desc: SampleDesc) -> KernelCase:
    """`draw_kernel` as it is launched for `desc`."""
    config = pick_config(desc)
    return KernelCase(
        kernel=draw_kernel,
        signature=(
            ("logits_ptr", "*fp32:16"),
            ("temperature_ptr", "*fp32"),
            ("floor_ptr", "*fp32:16"),
            ("border_ptr", "*i32:16"),
            ("seed_ptr", "*i64"),
            ("position_ptr", "*i32"),
            ("key_ptr", "*i64:16"),
            *sizes(desc.aligned),
            ("num_parts", "i32"),
        ),
        constants={"STREAM": SAMPLE_STREAM, "BLOCK_V": config.block_v},
        options={"num_warps": config.num_warps},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    yield from ((case(desc), frozenset()) for desc in descriptions())


def refuse(spec: LogitsSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    return "" if spec.vocab_size < 1 << 24 else "a vocabulary from 2^24 tokens on cannot be counted in float32"


def make_sample(spec: LogitsSpec, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """sample(logits_RV, temperature_R, top_k_R, top_p_R, min_p_R, seed_R, position_R) -> token_R int32.

    float32, but top_k and position int32 and seed int64. logits may be strided in R.
    """
    aligned, vocab_size = spec.vocab_size % 16 == 0, spec.vocab_size
    desc = SampleDesc(aligned=aligned)
    keep = launcher.prepare(token_filter.case(FilterDesc(aligned=aligned)))
    draw, choose = launcher.prepare(case(desc)), launcher.prepare(best_part_case())
    parts = -(-vocab_size // pick_config(desc).block_v)

    def sample(
        logits_RV: torch.Tensor,
        temperature_R: torch.Tensor,
        top_k_R: torch.Tensor,
        top_p_R: torch.Tensor,
        min_p_R: torch.Tensor,
        seed_R: torch.Tensor,
        position_R: torch.Tensor,
    ) -> torch.Tensor:
        rows, stride = logits_RV.shape[0], logits_RV.stride(0)
        token_R = logits_RV.new_empty(rows, dtype=torch.int32)
        if not rows:
            return token_R
        floor_R, border_R = logits_RV.new_empty(rows), torch.empty_like(token_R)
        key_RC = logits_RV.new_empty((rows, parts), dtype=torch.int64)
        keep((rows,), logits_RV, temperature_R, top_k_R, top_p_R, min_p_R, floor_R, border_R, stride, vocab_size)
        draw(
            (rows, parts),
            logits_RV,
            temperature_R,
            floor_R,
            border_R,
            seed_R,
            position_R,
            key_RC,
            stride,
            vocab_size,
            parts,
        )
        choose((rows,), key_RC, token_R, parts)
        return token_R

    return sample

"""Gumbel-max sampling: what the filters keep of a row, then the best noisy score of each part, then of all.

The noise is that of `backends/ops/philox.py`: lane token % 4 of Philox4x32-10 at counter (token // 4, position,
stream, 0) with the seed as key. Vectors have no product of 32-bit words with 64 bits, so its high word is put
together from products of halves.

Suffixes: R rows, V vocabulary, G groups of four tokens, C parts of the vocabulary.
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
from isoinfer.backends.ops.philox import SAMPLE_STREAM
from isoinfer.kernels_ascend import token_filter
from isoinfer.kernels_ascend.argmax import best_part_case, best_token
from isoinfer.kernels_ascend.token_filter import MAX_VOCAB, FilterDesc, load_scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDesc:
    """Nothing to choose by: every vocabulary takes one configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleConfig:
    """`block_v`: tokens of one part."""

    block_v: int


def pick_config(desc: SampleDesc) -> SampleConfig:
    """Random numbers need many tiles of a quarter of this at once."""
    return SampleConfig(block_v=2048)


def descriptions() -> Iterator[SampleDesc]:
    """The only one."""
    yield SampleDesc()


@triton.jit
def multiply_high(word, HIGH: tl.constexpr, LOW: tl.constexpr):
    """The high word of `word` * (HIGH << 16 | LOW), all of them words as int32."""
    high, low = (word >> 16) & 0xFFFF, word & 0xFFFF
    by_low, by_high = high * LOW, low * HIGH
    carry = ((low * LOW >> 16) & 0xFFFF) + (by_low & 0xFFFF) + (by_high & 0xFFFF)
    return high * HIGH + ((by_low >> 16) & 0xFFFF) + ((by_high >> 16) & 0xFFFF) + (carry >> 16)


@triton.jit
def gumbel(seed, position, group_G, STREAM: tl.constexpr):
    """Noise of the four tokens of each group, in the order of tokens. Words are int32, which wrap alike."""
    key_0, key_1 = seed.to(tl.int32), (seed >> 32).to(tl.int32)
    zero_G = tl.zeros_like(group_G)
    word_0G, word_1G, word_2G, word_3G = group_G, zero_G + position, zero_G + STREAM, zero_G
    for _ in range(10):
        high_0G, low_0G = multiply_high(word_0G, 0xD251, 0x1F53), word_0G * -0x2DAEE0AD
        high_1G, low_1G = multiply_high(word_2G, 0xCD9E, 0x8D57), word_2G * -0x326172A9
        word_0G, word_1G, word_2G, word_3G = high_1G ^ word_1G ^ key_0, low_1G, high_0G ^ word_3G ^ key_1, low_0G
        key_0 += -0x61C88647
        key_1 += -0x4498517B
    word_V = tl.interleave(tl.interleave(word_0G, word_2G), tl.interleave(word_1G, word_3G))
    uniform_V = (((word_V >> 9) & 0x7FFFFF).to(tl.float32) + 0.5) * 1.1920928955078125e-07
    return -tl.log(-tl.log(uniform_V))


@triton.jit(do_not_specialize=["rows", "row_stride", "vocab_size", "num_parts"])
def draw_kernel(
    logits_ptr,
    temperature_ptr,
    floor_ptr,
    border_ptr,
    seed_ptr,
    position_ptr,
    best_ptr,
    token_ptr,
    rows,
    row_stride,
    vocab_size,
    num_parts,
    STREAM: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    for item in range(tl.program_id(0), rows * num_parts, tl.num_programs(0)):
        row, part = item // num_parts, item % num_parts
        temperature = tl.load(temperature_ptr + row)
        token_V = part * BLOCK_V + tl.arange(0, BLOCK_V)
        row_ptr = logits_ptr + row.to(tl.int64) * row_stride
        score_V = load_scaled(row_ptr, token_V, vocab_size, tl.where(temperature == 0, 1.0, temperature))
        if temperature != 0:
            floor, border = tl.load(floor_ptr + row), tl.load(border_ptr + row)
            up_to_border_V = token_V.to(tl.float32) <= border.to(tl.float32)
            kept_V = (score_V > floor) | ((score_V == floor) & up_to_border_V)
            if tl.max(score_V, axis=0) >= floor:
                group_G = part * (BLOCK_V // 4) + tl.arange(0, BLOCK_V // 4)
                score_V += gumbel(tl.load(seed_ptr + row), tl.load(position_ptr + row), group_G, STREAM)
            score_V = tl.where(kept_V, score_V, float("-inf"))
        best, token = best_token(score_V, token_V)
        tl.store(best_ptr + item, best)
        tl.store(token_ptr + item, token)


def case(desc: SampleDesc) -> KernelCase:
    """`draw_kernel` as it is launched."""
    return KernelCase(
        kernel=draw_kernel,
        signature=(
            ("logits_ptr", "*fp32"),
            ("temperature_ptr", "*fp32"),
            ("floor_ptr", "*fp32"),
            ("border_ptr", "*i32"),
            ("seed_ptr", "*i64"),
            ("position_ptr", "*i32"),
            ("best_ptr", "*fp32"),
            ("token_ptr", "*i32"),
            ("rows", "i32"),
            ("row_stride", "i32"),
            ("vocab_size", "i32"),
            ("num_parts", "i32"),
        ),
        constants={"STREAM": SAMPLE_STREAM, "BLOCK_V": pick_config(desc).block_v},
        options={},
    )


def refuse(spec: LogitsSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    return "" if spec.vocab_size < MAX_VOCAB else "a vocabulary from 2^24 tokens on cannot be counted in float32"


def make_sample(spec: LogitsSpec, soc: Soc, launcher: Launcher) -> Callable[..., torch.Tensor]:
    """sample(logits_RV, temperature_R, top_k_R, top_p_R, min_p_R, seed_R, position_R) -> token_R int32.

    float32, but top_k and position int32 and seed int64. logits may be strided in R.
    """
    grid, vocab_size = (soc.vector_cores,), spec.vocab_size
    keep = launcher.prepare(token_filter.case(FilterDesc()))
    draw, choose = launcher.prepare(case(SampleDesc())), launcher.prepare(best_part_case())
    parts = -(-vocab_size // pick_config(SampleDesc()).block_v)

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
        out_R = logits_RV.new_empty(rows, dtype=torch.int32)
        if not rows:
            return out_R
        floor_R, border_R = logits_RV.new_empty(rows), torch.empty_like(out_R)
        best_RC = logits_RV.new_empty((rows, parts))
        token_RC = logits_RV.new_empty((rows, parts), dtype=torch.int32)
        limits = (temperature_R, top_k_R, top_p_R, min_p_R)
        keep(grid, logits_RV, *limits, floor_R, border_R, rows, stride, vocab_size)
        kept = (temperature_R, floor_R, border_R, seed_R, position_R)
        draw(grid, logits_RV, *kept, best_RC, token_RC, rows, stride, vocab_size, parts)
        choose(grid, best_RC, token_RC, out_R, rows, vocab_size, parts)
        return out_R

    return sample

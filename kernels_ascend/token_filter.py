"""Which tokens of a row top-k, min-p and top-p keep, found without sorting. Cores take rows in turn.

The kept tokens are a prefix of the order (score descending, token ascending), so two numbers name them: a score
`floor` above which all are kept, and a token `border` up to which those equal to the floor are. top-k and top-p
search the floats by their order as integers: each pass over the row sums what lies above three of them and leaves
a quarter of the range, and the search ends once the range holds one token. The integers are scalars only: on
vectors the kernel compares floats, tokens too, which are below 2^24. Sums have a fixed order, so a row's result
depends on that row alone.

Suffixes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import triton
import triton.language as tl

from isoinfer.backends.kernel_case import KernelCase

LOWEST: tl.constexpr = tl.constexpr(-0x7F800000)
"""The lowest finite float as an ordered integer. That of -inf is one less."""
MAX_VOCAB = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterDesc:
    """Nothing to choose by: every vocabulary takes one configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterConfig:
    """A core reads `block_v` logits of its row at a time."""

    block_v: int


def pick_config(desc: FilterDesc) -> FilterConfig:
    """About ten tiles live in a search, so half of what the plain kernels read at a time."""
    return FilterConfig(block_v=2048)


def descriptions() -> Iterator[FilterDesc]:
    """The only one."""
    yield FilterDesc()


@triton.jit
def ordered_image(x):
    """A float32 scalar as the int32 of the same order. Zeros are equal."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def image_value(image):
    """The float32 scalar whose ordered image is `image` (int32)."""
    return (image ^ ((image >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def load_scaled(logits_ptr, token_V, vocab_size, temperature):
    """logits / temperature; -inf outside the vocabulary."""
    return tl.load(logits_ptr + token_V, mask=token_V < vocab_size, other=float("-inf")) / temperature


@triton.jit
def row_best(logits_ptr, vocab_size, temperature, BLOCK_V: tl.constexpr):
    """The largest score of the row."""
    best_V = tl.full([BLOCK_V], float("-inf"), tl.float32)
    for start in range(0, vocab_size, BLOCK_V):
        scaled_V = load_scaled(logits_ptr, start + tl.arange(0, BLOCK_V), vocab_size, temperature)
        best_V = tl.maximum(best_V, scaled_V)
    return tl.max(best_V, axis=0)


@triton.jit
def min_p_floor(logits_ptr, vocab_size, temperature, best, min_p, BLOCK_V: tl.constexpr):
    """The lowest score whose probability is at least `min_p` of the best one's; inf if there is none."""
    floor_V = tl.full([BLOCK_V], float("inf"), tl.float32)
    for start in range(0, vocab_size, BLOCK_V):
        scaled_V = load_scaled(logits_ptr, start + tl.arange(0, BLOCK_V), vocab_size, temperature)
        kept_V = tl.exp(scaled_V - best) >= min_p
        floor_V = tl.minimum(floor_V, tl.where(kept_V, scaled_V, float("inf")))
    return tl.min(floor_V, axis=0)


@triton.jit
def weigh_above(logits_ptr, vocab_size, temperature, best, value, BLOCK_V: tl.constexpr):
    """Sum of exp(score - best score), and number, of the tokens with a score above `value`."""
    weight_V = tl.zeros([BLOCK_V], tl.float32)
    count_V = tl.zeros([BLOCK_V], tl.float32)
    for start in range(0, vocab_size, BLOCK_V):
        scaled_V = load_scaled(logits_ptr, start + tl.arange(0, BLOCK_V), vocab_size, temperature)
        over_V = scaled_V > value
        weight_V += tl.where(over_V, tl.exp(scaled_V - best), 0.0)
        count_V += tl.where(over_V, 1.0, 0.0)
    return tl.sum(weight_V, axis=0), tl.sum(count_V, axis=0)


@triton.jit
def find_floor(
    logits_ptr,
    vocab_size,
    temperature,
    best,
    low,
    count_low,
    limit,
    WEIGHTED: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """The smallest image t in (low, image of best] above which lies less than `limit`: weight, or tokens.

    `count_low`: the tokens above `low`, or more. The search ends with a range (low, high] that holds t and
    either no other image or no other token: either way the tokens from t on are those from low + 1 on.
    Returns low + 1, what lies above high, and the number of tokens in the range. Numbers are float32.
    """
    low, high = low.to(tl.int64), ordered_image(best).to(tl.int64)
    count_high = 0.0
    above = 0.0
    while (high - low > 1) & (count_low - count_high > 1.0):
        width = high - low
        at_1, at_2, at_3 = low + width // 4, low + width // 2, low + 3 * width // 4
        value_1 = image_value(at_1.to(tl.int32))
        value_2 = image_value(at_2.to(tl.int32))
        value_3 = image_value(at_3.to(tl.int32))
        count_1V = tl.zeros([BLOCK_V], tl.float32)
        count_2V = tl.zeros([BLOCK_V], tl.float32)
        count_3V = tl.zeros([BLOCK_V], tl.float32)
        weight_1V = tl.zeros([BLOCK_V], tl.float32)
        weight_2V = tl.zeros([BLOCK_V], tl.float32)
        weight_3V = tl.zeros([BLOCK_V], tl.float32)
        for start in range(0, vocab_size, BLOCK_V):
            scaled_V = load_scaled(logits_ptr, start + tl.arange(0, BLOCK_V), vocab_size, temperature)
            count_1V += tl.where(scaled_V > value_1, 1.0, 0.0)
            count_2V += tl.where(scaled_V > value_2, 1.0, 0.0)
            count_3V += tl.where(scaled_V > value_3, 1.0, 0.0)
            if WEIGHTED:
                weight_V = tl.exp(scaled_V - best)
                weight_1V += tl.where(scaled_V > value_1, weight_V, 0.0)
                weight_2V += tl.where(scaled_V > value_2, weight_V, 0.0)
                weight_3V += tl.where(scaled_V > value_3, weight_V, 0.0)
        count_1, count_2, count_3 = tl.sum(count_1V, axis=0), tl.sum(count_2V, axis=0), tl.sum(count_3V, axis=0)
        weight_1, weight_2, weight_3 = count_1, count_2, count_3
        if WEIGHTED:
            weight_1 = tl.sum(weight_1V, axis=0)
            weight_2 = tl.sum(weight_2V, axis=0)
            weight_3 = tl.sum(weight_3V, axis=0)
        in_1, in_2, in_3 = weight_1 < limit, weight_2 < limit, weight_3 < limit
        low = tl.where(in_1, low, tl.where(in_2, at_1, tl.where(in_3, at_2, at_3)))
        high = tl.where(in_1, at_1, tl.where(in_2, at_2, tl.where(in_3, at_3, high)))
        above = tl.where(in_1, weight_1, tl.where(in_2, weight_2, tl.where(in_3, weight_3, above)))
        count_low = tl.where(in_1, count_low, tl.where(in_2, count_1, tl.where(in_3, count_2, count_3)))
        count_high = tl.where(in_1, count_1, tl.where(in_2, count_2, tl.where(in_3, count_3, count_high)))
    return low.to(tl.int32) + 1, above, count_low - count_high


@triton.jit
def nth_equal(logits_ptr, vocab_size, temperature, value, n, BLOCK_V: tl.constexpr):
    """The n-th lowest token (from 1) whose score is `value`, by bisection: there is no prefix sum to rely on."""
    low = -1
    high = vocab_size - 1
    while high - low > 1:
        middle = (low + high) // 2
        count_V = tl.zeros([BLOCK_V], tl.float32)
        for start in range(0, middle + 1, BLOCK_V):
            token_V = start + tl.arange(0, BLOCK_V)
            scaled_V = load_scaled(logits_ptr, token_V, middle + 1, temperature)
            count_V += tl.where(scaled_V == value, 1.0, 0.0)
        enough = tl.sum(count_V, axis=0) >= n
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    return high


@triton.jit(do_not_specialize=["rows", "row_stride", "vocab_size"])
def token_filter_kernel(
    all_logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    floor_ptr,
    border_ptr,
    rows,
    row_stride,
    vocab_size,
    BLOCK_V: tl.constexpr,
):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        logits_ptr = all_logits_ptr + row_stride.to(tl.int64) * row
        temperature, top_k = tl.load(temperature_ptr + row), tl.load(top_k_ptr + row)
        top_p, min_p = tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
        by_k = (top_k > 0) & (top_k < vocab_size)
        floor = LOWEST
        border = vocab_size
        if (temperature != 0) & (by_k | (min_p > 0) | (top_p < 1)):
            best = row_best(logits_ptr, vocab_size, temperature, BLOCK_V)
            if by_k:
                floor, _, _ = find_floor(
                    logits_ptr,
                    vocab_size,
                    temperature,
                    best,
                    top_k * 0 + LOWEST - 1,
                    vocab_size.to(tl.float32),
                    top_k.to(tl.float32),
                    False,
                    BLOCK_V,
                )
            if min_p > 0:
                lowest = min_p_floor(logits_ptr, vocab_size, temperature, best, min_p, BLOCK_V)
                floor = tl.maximum(floor, ordered_image(lowest))
            if top_p < 1:
                total, count = weigh_above(logits_ptr, vocab_size, temperature, best, image_value(floor - 1), BLOCK_V)
                limit = top_p * total
                floor, above, equals = find_floor(
                    logits_ptr, vocab_size, temperature, best, floor - 1, count, limit, True, BLOCK_V
                )
                if equals > 1.0:  # all of one score, so their weights are equal
                    fit = tl.ceil((limit - above) / tl.exp(image_value(floor) - best))
                    fit = tl.minimum(tl.maximum(fit, 1.0), equals)
                    if fit < equals:
                        border = nth_equal(logits_ptr, vocab_size, temperature, image_value(floor), fit, BLOCK_V)
        tl.store(floor_ptr + row, image_value(floor))
        tl.store(border_ptr + row, border)


def case(desc: FilterDesc) -> KernelCase:
    """The kernel as it is launched."""
    return KernelCase(
        kernel=token_filter_kernel,
        signature=(
            ("all_logits_ptr", "*fp32"),
            ("temperature_ptr", "*fp32"),
            ("top_k_ptr", "*i32"),
            ("top_p_ptr", "*fp32"),
            ("min_p_ptr", "*fp32"),
            ("floor_ptr", "*fp32"),
            ("border_ptr", "*i32"),
            ("rows", "i32"),
            ("row_stride", "i32"),
            ("vocab_size", "i32"),
        ),
        constants={"BLOCK_V": pick_config(desc).block_v},
        options={},
    )

"""Which tokens of a row top-k, min-p and top-p keep, found without sorting.

The kept tokens are a prefix of the order (score descending, token ascending), so two numbers name them: a score
`floor` above which all are kept, and a token `border` up to which those equal to the floor are. top-k and top-p
search the floats by their order as integers: each pass over the row sums what lies above three of them and leaves
a quarter of the range, and the search ends once the range holds one token. Sums have a fixed order, so a row's
result depends on that row alone.

Suffixes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import triton
import triton.language as tl

from isoinfer.backends.kernel_case import KernelCase
from isoinfer.kernels_cuda.argmax import ordered_image, sizes

NEG_INF: tl.constexpr = tl.constexpr(-0x7F800001)
"""The ordered image of -inf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterDesc:
    """What a configuration depends on. `aligned`: rows start and end at a multiple of 16 elements."""

    aligned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterConfig:
    """One program a row, which reads `block_v` logits at a time."""

    block_v: int
    num_warps: int


def pick_config(desc: FilterDesc) -> FilterConfig:
    """Few logits a thread: each has six running sums, and a search waits for memory, so threads are many."""
    return FilterConfig(block_v=4096, num_warps=16)


def descriptions() -> Iterator[FilterDesc]:
    """One description for every configuration that `pick_config` can return."""
    yield from (FilterDesc(aligned=aligned) for aligned in (True, False))


@triton.jit
def image_value(image):
    """The float32 whose ordered image is `image` (int32)."""
    return (image ^ ((image >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def load_scaled(logits_ptr, token_V, vocab_size, temperature):
    """logits / temperature, rounded as the definition's; -inf outside the vocabulary."""
    logits_V = tl.load(logits_ptr + token_V, mask=token_V < vocab_size, other=float("-inf"))
    return tl.div_rn(logits_V, temperature)


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
    count_V = tl.zeros([BLOCK_V], tl.int32)
    for start in range(0, vocab_size, BLOCK_V):
        scaled_V = load_scaled(logits_ptr, start + tl.arange(0, BLOCK_V), vocab_size, temperature)
        over_V = scaled_V > value
        weight_V += tl.where(over_V, tl.exp(scaled_V - best), 0.0)
        count_V += over_V.to(tl.int32)
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
    Returns low + 1, what lies above high, and the number of tokens in the range.
    """
    low, high = low.to(tl.int64), ordered_image(best).to(tl.int64)
    count_high = 0
    above = 0.0
    while (high - low > 1) & (count_low - count_high > 1):
        width = high - low
        at_1, at_2, at_3 = low + width // 4, low + width // 2, low + 3 * width // 4
        value_1, value_2, value_3 = (
            image_value(at_1.to(tl.int32)),
            image_value(at_2.to(tl.int32)),
            image_value(at_3.to(tl.int32)),
        )
        count_1V = tl.zeros([BLOCK_V], tl.int32)
        count_2V = tl.zeros([BLOCK_V], tl.int32)
        count_3V = tl.zeros([BLOCK_V], tl.int32)
        weight_1V = tl.zeros([BLOCK_V], tl.float32)
        weight_2V = tl.zeros([BLOCK_V], tl.float32)
        weight_3V = tl.zeros([BLOCK_V], tl.float32)
        for start in range(0, vocab_size, BLOCK_V):
            scaled_V = load_scaled(logits_ptr, start + tl.arange(0, BLOCK_V), vocab_size, temperature)
            over_1V, over_2V, over_3V = scaled_V > value_1, scaled_V > value_2, scaled_V > value_3
            count_1V += over_1V.to(tl.int32)
            count_2V += over_2V.to(tl.int32)
            count_3V += over_3V.to(tl.int32)
            if WEIGHTED:
                weight_V = tl.exp(scaled_V - best)
                weight_1V += tl.where(over_1V, weight_V, 0.0)
                weight_2V += tl.where(over_2V, weight_V, 0.0)
                weight_3V += tl.where(over_3V, weight_V, 0.0)
        count_1, count_2, count_3 = tl.sum(count_1V, axis=0), tl.sum(count_2V, axis=0), tl.sum(count_3V, axis=0)
        if WEIGHTED:
            weight_1, weight_2, weight_3 = (
                tl.sum(weight_1V, axis=0),
                tl.sum(weight_2V, axis=0),
                tl.sum(weight_3V, axis=0),
            )
        else:
            weight_1, weight_2, weight_3 = count_1.to(tl.float32), count_2.to(tl.float32), count_3.to(tl.float32)
        in_1, in_2, in_3 = weight_1 < limit, weight_2 < limit, weight_3 < limit
        low = tl.where(in_1, low, tl.where(in_2, at_1, tl.where(in_3, at_2, at_3)))
        high = tl.where(in_1, at_1, tl.where(in_2, at_2, tl.where(in_3, at_3, high)))
        above = tl.where(in_1, weight_1, tl.where(in_2, weight_2, tl.where(in_3, weight_3, above)))
        count_low = tl.where(in_1, count_low, tl.where(in_2, count_1, tl.where(in_3, count_2, count_3)))
        count_high = tl.where(in_1, count_1, tl.where(in_2, count_2, tl.where(in_3, count_3, count_high)))
    return low.to(tl.int32) + 1, above, count_low - count_high


@triton.jit
def nth_equal(logits_ptr, vocab_size, temperature, value, n, BLOCK_V: tl.constexpr):
    """The n-th lowest token (from 1) whose score is `value`."""
    seen = 0
    border_V = tl.full([BLOCK_V], -1, tl.int32)
    for start in range(0, vocab_size, BLOCK_V):
        token_V = start + tl.arange(0, BLOCK_V)
        scaled_V = load_scaled(logits_ptr, token_V, vocab_size, temperature)
        equal_V = (scaled_V == value).to(tl.int32)
        rank_V = seen + tl.cumsum(equal_V, axis=0)
        border_V = tl.maximum(border_V, tl.where((equal_V != 0) & (rank_V <= n), token_V, -1))
        seen += tl.sum(equal_V, axis=0)
    return tl.max(border_V, axis=0)


@triton.jit
def token_filter_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    floor_ptr,
    border_ptr,
    row_stride,
    vocab_size,
    BLOCK_V: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * row_stride
    temperature, top_k = tl.load(temperature_ptr + row), tl.load(top_k_ptr + row)
    top_p, min_p = tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
    by_k = (top_k > 0) & (top_k < vocab_size)
    floor = tl.full([], NEG_INF + 1, tl.int32)  # the lowest finite score: -inf is never drawn
    border = tl.full([], 0x7FFFFFFF, tl.int32)
    if (temperature != 0) & (by_k | (min_p > 0) | (top_p < 1)):
        best = row_best(logits_ptr, vocab_size, temperature, BLOCK_V)
        if by_k:
            floor, _, _ = find_floor(
                logits_ptr, vocab_size, temperature, best, floor - 1, vocab_size, top_k.to(tl.float32), False, BLOCK_V
            )
        if min_p > 0:
            lowest = min_p_floor(logits_ptr, vocab_size, temperature, best, min_p, BLOCK_V)
            floor = tl.maximum(floor, ordered_image(lowest))
        if top_p < 1:
            below = image_value(floor - 1)
            total, count = weigh_above(logits_ptr, vocab_size, temperature, best, below, BLOCK_V)
            limit = top_p * total
            floor, above, equals = find_floor(
                logits_ptr, vocab_size, temperature, best, floor - 1, count, limit, True, BLOCK_V
            )
            if equals > 1:  # all of one score, so their weights are equal
                fit = tl.ceil((limit - above) / tl.exp(image_value(floor) - best))
                fit = tl.minimum(tl.maximum(fit, 1.0), equals.to(tl.float32)).to(tl.int32)
                if fit < equals:
                    border = nth_equal(logits_ptr, vocab_size, temperature, image_value(floor), fit, BLOCK_V)
    tl.store(floor_ptr + row, image_value(floor))
    tl.store(border_ptr + row, border)


def case(desc: FilterDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config = pick_config(desc)
    return KernelCase(
        kernel=token_filter_kernel,
        signature=(
            ("logits_ptr", "*fp32:16"),
            ("temperature_ptr", "*fp32"),
            ("top_k_ptr", "*i32"),
            ("top_p_ptr", "*fp32"),
            ("min_p_ptr", "*fp32"),
            ("floor_ptr", "*fp32:16"),
            ("border_ptr", "*i32:16"),
            *sizes(desc.aligned),
        ),
        constants={"BLOCK_V": config.block_v},
        options={"num_warps": config.num_warps},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    yield from ((case(desc), frozenset()) for desc in descriptions())

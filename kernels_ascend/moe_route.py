"""Choice of experts: a token's best logits one after the other, and their softmax. Cores take tokens in turn.

Suffixes: T tokens, E experts (padded), X experts of a token (padded in the kernel).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.ascend.soc import Soc
from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launcher
from isoinfer.backends.ops import RouteSpec

DTYPES = ("bfloat16", "float16", "float32")
WIDTHS = (128, 512, 2048)
"""Numbers of experts that have tiles of their own."""
MAX_CHOSEN = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteDesc:
    """What a configuration depends on."""

    num_experts: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteConfig:
    """`block_e`: experts that fit. `block_x`: choices that fit."""

    block_e: int
    block_x: int


def pick_config(desc: RouteDesc) -> RouteConfig:
    """The narrowest tile that holds a token's logits."""
    return RouteConfig(block_e=next(width for width in WIDTHS if desc.num_experts <= width), block_x=MAX_CHOSEN)


def descriptions() -> Iterator[RouteDesc]:
    """One description for every configuration that `pick_config` can return."""
    for dtype in DTYPES:
        for num_experts in WIDTHS:
            yield RouteDesc(num_experts=num_experts, dtype=dtype)


@triton.jit
def sum_exactly(x_E):
    """The sum of up to 2048 values between 0 and 1, rounded about once: multiples of 2^-12 add up without error."""
    high_E = tl.floor(x_E * 4096.0) * (1.0 / 4096.0)
    return tl.sum(high_E, axis=0) + tl.sum(x_E - high_E, axis=0)


@triton.jit(do_not_specialize=["tokens", "stride", "num_experts", "top_k", "over_all", "renormalize"])
def moe_route_kernel(
    logits_ptr,
    weights_ptr,
    ids_ptr,
    tokens,
    stride,
    num_experts,
    top_k,
    over_all,
    renormalize,
    BLOCK_E: tl.constexpr,
    BLOCK_X: tl.constexpr,
):
    e = tl.arange(0, BLOCK_E)
    x = tl.arange(0, BLOCK_X)
    for token in range(tl.program_id(0), tokens, tl.num_programs(0)):
        row = logits_ptr + stride.to(tl.int64) * token
        logits_E = tl.load(row + e, mask=e < num_experts, other=float("-inf")).to(tl.float32)
        largest = tl.max(logits_E, axis=0)
        total = sum_exactly(tl.exp(logits_E - largest))
        free_E = tl.where(e < num_experts, 1.0, 0.0)
        exp_X = tl.zeros([BLOCK_X], tl.float32)
        ids_X = tl.zeros([BLOCK_X], tl.int32)
        for choice in range(top_k):
            best = tl.max(tl.where(free_E > 0, logits_E, float("-inf")), axis=0)
            expert = tl.min(tl.where((free_E > 0) & (logits_E == best), e, 0x7FFFFFFF), axis=0)
            free_E = tl.where(e == expert, 0.0, free_E)
            exp_X = tl.where(x == choice, tl.exp(best - largest), exp_X)
            ids_X = tl.where(x == choice, expert, ids_X)
        weights_X = exp_X / tl.where(over_all > 0, total, sum_exactly(exp_X))
        weights_X = weights_X / tl.where(renormalize > 0, sum_exactly(weights_X), 1.0)
        out = top_k.to(tl.int64) * token
        tl.store(weights_ptr + out + x, weights_X, mask=x < top_k)
        tl.store(ids_ptr + out + x, ids_X, mask=x < top_k)


def case(desc: RouteDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config = pick_config(desc)
    return KernelCase(
        kernel=moe_route_kernel,
        signature=(
            ("logits_ptr", POINTERS[desc.dtype]),
            ("weights_ptr", "*fp32"),
            ("ids_ptr", "*i32"),
            *((name, "i32") for name in ("tokens", "stride", "num_experts", "top_k", "over_all", "renormalize")),
        ),
        constants={"BLOCK_E": config.block_e, "BLOCK_X": config.block_x},
        options={},
    )


def refuse(spec: RouteSpec) -> str:
    """Why this kernel does not serve `spec`, or "" if it does."""
    if spec.dtype not in DTYPES:
        return f"dtype {spec.dtype} is not one of {', '.join(DTYPES)}"
    if spec.num_experts > WIDTHS[-1]:
        return f"{spec.num_experts} experts are more than {WIDTHS[-1]}"
    return f"{spec.top_k} experts of a token are more than {MAX_CHOSEN}" if spec.top_k > MAX_CHOSEN else ""


def make_moe_route(spec: RouteSpec, soc: Soc, launcher: Launcher) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """moe_route(logits_TE) -> (weights_TX float32, ids_TX int32). logits may be strided in T."""
    launch = launcher.prepare(case(RouteDesc(num_experts=spec.num_experts, dtype=spec.dtype)))
    grid, flags = (soc.vector_cores,), (int(spec.kind == "softmax_topk"), int(spec.renormalize))

    def moe_route(logits_TE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = logits_TE.shape[0]
        weights_TX = logits_TE.new_empty((tokens, spec.top_k), dtype=torch.float32)
        ids_TX = logits_TE.new_empty((tokens, spec.top_k), dtype=torch.int32)
        if tokens:
            sizes = (tokens, logits_TE.stride(0), spec.num_experts, spec.top_k)
            launch(grid, logits_TE, weights_TX, ids_TX, *sizes, *flags)
        return weights_TX, ids_TX

    return moe_route

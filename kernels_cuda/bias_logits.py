"""Adding a sparse list to logits, in place. The first entry of a token adds what all its entries sum to.

Sums are float64, which holds sums of float32 values exactly unless their sizes are very far apart, so the
order of entries in the list, which depends on the batch, does not show in the result.

Suffixes: R rows, V vocabulary, M entries; I entries of a program, J entries that it compares them with.
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
class BiasDesc:
    """Nothing to choose by: lists of all lengths take one configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasConfig:
    """`block_i` entries of a program, compared with `block_j` at a time."""

    block_i: int
    block_j: int
    num_warps: int


def pick_config(desc: BiasDesc) -> BiasConfig:
    """16 comparisons a thread."""
    return BiasConfig(block_i=32, block_j=64, num_warps=4)


def descriptions() -> Iterator[BiasDesc]:
    """The only one."""
    yield BiasDesc()


@triton.jit(do_not_specialize=["num_entries", "row_stride"])
def bias_logits_kernel(
    logits_ptr, row_ptr, token_ptr, value_ptr, row_stride, num_entries, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr
):
    index_I = tl.program_id(0) * BLOCK_I + tl.arange(0, BLOCK_I)
    inside_I = index_I < num_entries
    row_I = tl.load(row_ptr + index_I, mask=inside_I, other=-1)
    token_I = tl.load(token_ptr + index_I, mask=inside_I, other=-1)
    earlier_I = tl.zeros([BLOCK_I], tl.int32)
    total_I = tl.zeros([BLOCK_I], tl.float64)
    for start in range(0, num_entries, BLOCK_J):
        index_J = start + tl.arange(0, BLOCK_J)
        inside_J = index_J < num_entries
        row_J = tl.load(row_ptr + index_J, mask=inside_J, other=-2)
        token_J = tl.load(token_ptr + index_J, mask=inside_J, other=-2)
        value_J = tl.load(value_ptr + index_J, mask=inside_J, other=0.0).to(tl.float64)
        same_IJ = (row_I[:, None] == row_J[None, :]) & (token_I[:, None] == token_J[None, :])
        earlier_I += tl.sum((same_IJ & (index_J[None, :] < index_I[:, None])).to(tl.int32), axis=1)
        total_I += tl.sum(tl.where(same_IJ, value_J[None, :], 0.0), axis=1)
    first_I = inside_I & (earlier_I == 0)
    at_I = logits_ptr + row_I.to(tl.int64) * row_stride + token_I
    logits_I = tl.load(at_I, mask=first_I, other=0.0)
    tl.store(at_I, (logits_I.to(tl.float64) + total_I).to(tl.float32), mask=first_I)


def case(desc: BiasDesc) -> KernelCase:
    """The kernel as it is launched."""
    config = pick_config(desc)
    return KernelCase(
        kernel=bias_logits_kernel,
        signature=(
            ("logits_ptr", "*fp32:16"),
            ("row_ptr", "*i32"),
            ("token_ptr", "*i32"),
            ("value_ptr", "*fp32"),
            ("row_stride", "i32"),
            ("num_entries", "i32"),
        ),
        constants={"BLOCK_I": config.block_i, "BLOCK_J": config.block_j},
        options={"num_warps": config.num_warps},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    yield from ((case(desc), frozenset()) for desc in descriptions())


def refuse(spec: LogitsSpec) -> str:
    """Every vocabulary is served."""
    return ""


def make_bias_logits(spec: LogitsSpec, launcher: Launcher) -> Callable[..., None]:
    """bias_logits(logits_RV float32, row_M int32, token_M int32, value_M float32), in place; strided in R or not."""
    launch, block_i = launcher.prepare(case(BiasDesc())), pick_config(BiasDesc()).block_i

    def bias_logits(logits_RV: torch.Tensor, row_M: torch.Tensor, token_M: torch.Tensor, value_M: torch.Tensor) -> None:
        entries = row_M.shape[0]
        if entries:
            launch((-(-entries // block_i),), logits_RV, row_M, token_M, value_M, logits_RV.stride(0), entries)

    return bias_logits

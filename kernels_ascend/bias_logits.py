"""Adding a sparse list to logits, in place. Cores take entries in turn.

The first entry of a token adds what all its entries sum to. Entries of one token are rare; where there are
several they are added one by one in the list's order, so the result depends on no other row's entries.

Suffixes: R rows, V vocabulary, M entries, J entries that are compared at a time.
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
class BiasDesc:
    """Nothing to choose by: lists of all lengths take one configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasConfig:
    """`block_j`: entries that an entry is compared with at a time."""

    block_j: int


def pick_config(desc: BiasDesc) -> BiasConfig:
    """Lists are short: most of them fit one tile."""
    return BiasConfig(block_j=256)


def descriptions() -> Iterator[BiasDesc]:
    """The only one."""
    yield BiasDesc()


@triton.jit
def count_equal(row_ptr, token_ptr, row, token, stop, BLOCK_J: tl.constexpr):
    """How many of the first `stop` entries are for `token` of `row`."""
    count_J = tl.zeros([BLOCK_J], tl.float32)
    for start in range(0, stop, BLOCK_J):
        index_J = start + tl.arange(0, BLOCK_J)
        row_J = tl.load(row_ptr + index_J, mask=index_J < stop, other=-1)
        token_J = tl.load(token_ptr + index_J, mask=index_J < stop, other=-1)
        count_J += tl.where((row_J == row) & (token_J == token), 1.0, 0.0)
    return tl.sum(count_J, axis=0)


@triton.jit(do_not_specialize=["row_stride", "num_entries"])
def bias_logits_kernel(logits_ptr, row_ptr, token_ptr, value_ptr, row_stride, num_entries, BLOCK_J: tl.constexpr):
    for entry in range(tl.program_id(0), num_entries, tl.num_programs(0)):
        row, token = tl.load(row_ptr + entry), tl.load(token_ptr + entry)
        if count_equal(row_ptr, token_ptr, row, token, entry, BLOCK_J) == 0:
            at = logits_ptr + row.to(tl.int64) * row_stride + token
            y = tl.load(at) + tl.load(value_ptr + entry)
            if count_equal(row_ptr, token_ptr, row, token, num_entries, BLOCK_J) > 1:
                for other in range(entry + 1, num_entries):
                    same = (tl.load(row_ptr + other) == row) & (tl.load(token_ptr + other) == token)
                    y += tl.where(same, tl.load(value_ptr + other), 0.0)
            tl.store(at, y)


def case(desc: BiasDesc) -> KernelCase:
    """The kernel as it is launched."""
    return KernelCase(
        kernel=bias_logits_kernel,
        signature=(
            ("logits_ptr", "*fp32"),
            ("row_ptr", "*i32"),
            ("token_ptr", "*i32"),
            ("value_ptr", "*fp32"),
            ("row_stride", "i32"),
            ("num_entries", "i32"),
        ),
        constants={"BLOCK_J": pick_config(desc).block_j},
        options={},
    )


def refuse(spec: LogitsSpec) -> str:
    """Every vocabulary is served."""
    return ""


def make_bias_logits(spec: LogitsSpec, soc: Soc, launcher: Launcher) -> Callable[..., None]:
    """bias_logits(logits_RV float32, row_M int32, token_M int32, value_M float32), in place; strided in R or not."""
    launch, grid = launcher.prepare(case(BiasDesc())), (soc.vector_cores,)

    def bias_logits(logits_RV: torch.Tensor, row_M: torch.Tensor, token_M: torch.Tensor, value_M: torch.Tensor) -> None:
        entries = row_M.shape[0]
        if entries:
            launch(grid, logits_RV, row_M, token_M, value_M, logits_RV.stride(0), entries)

    return bias_logits

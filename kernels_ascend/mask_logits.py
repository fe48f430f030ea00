"""Banning tokens by bitmask, whole words of 32 tokens at a time. Cores take parts of rows in turn.

Suffixes: R rows, V vocabulary, W words of 32 tokens, B bits of a word.
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
class MaskDesc:
    """Nothing to choose by: every vocabulary takes one configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskConfig:
    """`block_w`: words of one part."""

    block_w: int


def pick_config(desc: MaskDesc) -> MaskConfig:
    """2048 tokens: the bits spread out take several tiles of as many integers."""
    return MaskConfig(block_w=64)


def descriptions() -> Iterator[MaskDesc]:
    """The only one."""
    yield MaskDesc()


@triton.jit(do_not_specialize=["rows", "row_stride", "mask_stride", "vocab_size", "num_parts"])
def mask_logits_kernel(
    logits_ptr, bitmask_ptr, rows, row_stride, mask_stride, vocab_size, num_parts, BLOCK_W: tl.constexpr
):
    power_B = 1 << tl.arange(0, 32)  # a shift by a vector is a scalar loop: one of 32 steps, before all others
    for item in range(tl.program_id(0), rows * num_parts, tl.num_programs(0)):
        row, part = (item // num_parts).to(tl.int64), item % num_parts
        index_W = part * BLOCK_W + tl.arange(0, BLOCK_W)
        word_W = tl.load(bitmask_ptr + row * mask_stride + index_W, mask=index_W < (vocab_size + 31) // 32, other=0)
        bit_WB = word_W[:, None] & power_B[None, :]
        bit_V = tl.reshape(bit_WB, [BLOCK_W * 32])
        token_V = part * (BLOCK_W * 32) + tl.arange(0, BLOCK_W * 32)
        inside_V = token_V < vocab_size
        at_V = logits_ptr + row * row_stride + token_V
        logits_V = tl.load(at_V, mask=inside_V, other=0.0)
        tl.store(at_V, tl.where(bit_V != 0, logits_V, float("-inf")), mask=inside_V)


def case(desc: MaskDesc) -> KernelCase:
    """The kernel as it is launched."""
    return KernelCase(
        kernel=mask_logits_kernel,
        signature=(
            ("logits_ptr", "*fp32"),
            ("bitmask_ptr", "*i32"),
            ("rows", "i32"),
            ("row_stride", "i32"),
            ("mask_stride", "i32"),
            ("vocab_size", "i32"),
            ("num_parts", "i32"),
        ),
        constants={"BLOCK_W": pick_config(desc).block_w},
        options={},
    )


def refuse(spec: LogitsSpec) -> str:
    """Every vocabulary is served."""
    return ""


def make_mask_logits(spec: LogitsSpec, soc: Soc, launcher: Launcher) -> Callable[..., None]:
    """mask_logits(logits_RV float32, bitmask_RW int32), in place. Both may be strided in R."""
    launch, grid, vocab_size = launcher.prepare(case(MaskDesc())), (soc.vector_cores,), spec.vocab_size
    parts = -(-vocab_size // (pick_config(MaskDesc()).block_w * 32))

    def mask_logits(logits_RV: torch.Tensor, bitmask_RW: torch.Tensor) -> None:
        rows = logits_RV.shape[0]
        if rows:
            strides = (logits_RV.stride(0), bitmask_RW.stride(0))
            launch(grid, logits_RV, bitmask_RW, rows, *strides, vocab_size, parts)

    return mask_logits

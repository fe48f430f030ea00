"""Banning tokens by bitmask: -inf is written where a bit is clear, and nothing else is touched.

Suffixes: R rows, V vocabulary, W words of 32 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from isoinfer.backends.kernel_case import KernelCase, Launcher
from isoinfer.backends.ops import LogitsSpec
from isoinfer.kernels_cuda.argmax import sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskDesc:
    """What a configuration depends on. `aligned`: rows start and end at a multiple of 16 elements."""

    aligned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskConfig:
    """`block_v`: tokens of one program."""

    block_v: int
    num_warps: int


def pick_config(desc: MaskDesc) -> MaskConfig:
    """16 tokens a thread: half a word of the mask."""
    return MaskConfig(block_v=2048, num_warps=4)


def descriptions() -> Iterator[MaskDesc]:
    """One description for every configuration that `pick_config` can return."""
    yield from (MaskDesc(aligned=aligned) for aligned in (True, False))


@triton.jit(do_not_specialize=["mask_stride"])
def mask_logits_kernel(logits_ptr, bitmask_ptr, row_stride, vocab_size, mask_stride, BLOCK_V: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token_V = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    inside_V = token_V < vocab_size
    word_V = tl.load(bitmask_ptr + row * mask_stride + token_V // 32, mask=inside_V, other=-1)
    banned_V = ((word_V >> (token_V % 32)) & 1) == 0
    banned = tl.full([BLOCK_V], float("-inf"), tl.float32)
    tl.store(logits_ptr + row * row_stride + token_V, banned, mask=inside_V & banned_V)


def case(desc: MaskDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config = pick_config(desc)
    return KernelCase(
        kernel=mask_logits_kernel,
        signature=(
            ("logits_ptr", "*fp32:16"),
            ("bitmask_ptr", "*i32:16"),
            *sizes(desc.aligned),
            ("mask_stride", "i32"),
        ),
        constants={"BLOCK_V": config.block_v},
        options={"num_warps": config.num_warps},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    yield from ((case(desc), frozenset()) for desc in descriptions())


def refuse(spec: LogitsSpec) -> str:
    """Every vocabulary is served."""
    return ""


def make_mask_logits(spec: LogitsSpec, launcher: Launcher) -> Callable[..., None]:
    """mask_logits(logits_RV float32, bitmask_RW int32), in place. Both may be strided in R."""
    desc, vocab_size = MaskDesc(aligned=spec.vocab_size % 16 == 0), spec.vocab_size
    launch, parts = launcher.prepare(case(desc)), -(-vocab_size // pick_config(desc).block_v)

    def mask_logits(logits_RV: torch.Tensor, bitmask_RW: torch.Tensor) -> None:
        rows = logits_RV.shape[0]
        if rows:
            launch((rows, parts), logits_RV, bitmask_RW, logits_RV.stride(0), vocab_size, bitmask_RW.stride(0))

    return mask_logits

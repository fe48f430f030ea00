"""Penalties on tokens that a row has seen. A program counts them for its part of the vocabulary in a histogram.

Only logits of seen tokens are written. Rows whose settings change nothing are left at once.

Suffixes: R rows, V vocabulary, S slots, L history length.
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
class PenalizeDesc:
    """What a configuration depends on. `aligned`: rows start and end at a multiple of 16 elements."""

    aligned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PenalizeConfig:
    """`block_v` tokens of the vocabulary a program, `block_l` tokens of the history at a time."""

    block_v: int
    block_l: int
    num_warps: int


def pick_config(desc: PenalizeDesc) -> PenalizeConfig:
    """A histogram works in registers, some of them for every bin, so parts of the vocabulary are small."""
    return PenalizeConfig(block_v=1024, block_l=512, num_warps=4)


def descriptions() -> Iterator[PenalizeDesc]:
    """One description for every configuration that `pick_config` can return."""
    yield from (PenalizeDesc(aligned=aligned) for aligned in (True, False))


@triton.jit
def count_tokens(history_ptr, start, stop, first, BLOCK_V: tl.constexpr, BLOCK_L: tl.constexpr):
    """How often each of the BLOCK_V tokens from `first` on is in history[start:stop]."""
    count_V = tl.zeros([BLOCK_V], tl.int32)
    for at in range(start, stop, BLOCK_L):
        index_L = at + tl.arange(0, BLOCK_L)
        bin_L = tl.load(history_ptr + index_L, mask=index_L < stop, other=-1) - first
        within_L = (index_L < stop) & (bin_L >= 0) & (bin_L < BLOCK_V)
        if tl.max(within_L.to(tl.int32), axis=0) > 0:
            count_V += tl.histogram(tl.where(within_L, bin_L, 0), BLOCK_V, mask=within_L)
    return count_V


@triton.jit(do_not_specialize=["history_stride"])
def penalize_kernel(
    logits_ptr,
    history_ptr,
    slot_ptr,
    prompt_len_ptr,
    length_ptr,
    presence_ptr,
    frequency_ptr,
    repetition_ptr,
    row_stride,
    vocab_size,
    history_stride,
    BLOCK_V: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK_V
    presence, frequency = tl.load(presence_ptr + row), tl.load(frequency_ptr + row)
    repetition = tl.load(repetition_ptr + row)
    if (presence != 0) | (frequency != 0) | (repetition != 1):
        history_ptr += tl.load(slot_ptr + row).to(tl.int64) * history_stride
        prompt_len, length = tl.load(prompt_len_ptr + row), tl.load(length_ptr + row)
        count_V = count_tokens(history_ptr, prompt_len, length, first, BLOCK_V, BLOCK_L)
        seen_V = count_V
        if repetition != 1:
            seen_V += count_tokens(history_ptr, 0, tl.minimum(prompt_len, length), first, BLOCK_V, BLOCK_L)
        token_V = first + tl.arange(0, BLOCK_V)
        changed_V = (token_V < vocab_size) & (seen_V > 0)
        logits_V = tl.load(logits_ptr + row * row_stride + token_V, mask=changed_V, other=0.0)
        repeated_V = tl.where(logits_V > 0, tl.div_rn(logits_V, repetition), logits_V * repetition)
        y_V = repeated_V - frequency * count_V.to(tl.float32)
        y_V -= presence * (count_V > 0).to(tl.float32)
        tl.store(logits_ptr + row * row_stride + token_V, y_V, mask=changed_V)


def case(desc: PenalizeDesc) -> KernelCase:
    """The kernel as it is launched for `desc`."""
    config = pick_config(desc)
    return KernelCase(
        kernel=penalize_kernel,
        signature=(
            ("logits_ptr", "*fp32:16"),
            ("history_ptr", "*i32:16"),
            ("slot_ptr", "*i32"),
            ("prompt_len_ptr", "*i32"),
            ("length_ptr", "*i32"),
            ("presence_ptr", "*fp32"),
            ("frequency_ptr", "*fp32"),
            ("repetition_ptr", "*fp32"),
            *sizes(desc.aligned),
            ("history_stride", "i32"),
        ),
        constants={"BLOCK_V": config.block_v, "BLOCK_L": config.block_l},
        options={"num_warps": config.num_warps},
    )


def cases(sm: int) -> Iterator[tuple[KernelCase, frozenset[str]]]:
    """Every case of this file for `sm`, with what its compiled code must show."""
    yield from ((case(desc), frozenset()) for desc in descriptions())


def refuse(spec: LogitsSpec) -> str:
    """Every vocabulary is served."""
    return ""


def make_penalize(spec: LogitsSpec, launcher: Launcher) -> Callable[..., None]:
    """penalize(logits_RV, history_SL, slot_R, prompt_len_R, length_R, presence_R, frequency_R, repetition_R).

    In place. float32 but history, slots and lengths int32. logits and history may be strided in their rows.
    """
    desc, vocab_size = PenalizeDesc(aligned=spec.vocab_size % 16 == 0), spec.vocab_size
    launch, parts = launcher.prepare(case(desc)), -(-vocab_size // pick_config(desc).block_v)

    def penalize(
        logits_RV: torch.Tensor,
        history_SL: torch.Tensor,
        slot_R: torch.Tensor,
        prompt_len_R: torch.Tensor,
        length_R: torch.Tensor,
        presence_R: torch.Tensor,
        frequency_R: torch.Tensor,
        repetition_R: torch.Tensor,
    ) -> None:
        rows = logits_RV.shape[0]
        if rows:
            launch(
                (rows, parts),
                logits_RV,
                history_SL,
                slot_R,
                prompt_len_R,
                length_R,
                presence_R,
                frequency_R,
                repetition_R,
                logits_RV.stride(0),
                vocab_size,
                history_SL.stride(0),
            )

    return penalize

"""Penalties on tokens that a row has seen: one kernel counts them, one changes the logits. Cores take parts in turn.

The counts are one integer for each logit: bit 30 is set by any token of the prompt, in a launch of its own, then
the lower bits count output tokens. Integer atomics give the same counts in every order. Rows whose settings change
nothing are left at once.

Suffixes: R rows, V vocabulary, S slots, L history length.
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
class PenalizeDesc:
    """Nothing to choose by: every vocabulary takes one configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PenalizeConfig:
    """`block_l` tokens of the history and `block_v` tokens of the vocabulary a part."""

    block_l: int
    block_v: int


def pick_config(desc: PenalizeDesc) -> PenalizeConfig:
    """Counting goes token by token, so short parts share a history among cores. The rest is plain vectors."""
    return PenalizeConfig(block_l=256, block_v=2048)


def descriptions() -> Iterator[PenalizeDesc]:
    """The only one."""
    yield PenalizeDesc()


@triton.jit(do_not_specialize=["rows", "history_stride", "vocab_size", "num_parts"])
def count_tokens_kernel(
    history_ptr,
    slot_ptr,
    prompt_len_ptr,
    length_ptr,
    presence_ptr,
    frequency_ptr,
    repetition_ptr,
    count_ptr,
    rows,
    history_stride,
    vocab_size,
    num_parts,
    PROMPT: tl.constexpr,
    BLOCK_L: tl.constexpr,
):
    for item in range(tl.program_id(0), rows * num_parts, tl.num_programs(0)):
        row, part = item // num_parts, item % num_parts
        presence, frequency = tl.load(presence_ptr + row), tl.load(frequency_ptr + row)
        if (presence != 0) | (frequency != 0) | (tl.load(repetition_ptr + row) != 1):
            prompt_len, length = tl.load(prompt_len_ptr + row), tl.load(length_ptr + row)
            slot_history_ptr = history_ptr + tl.load(slot_ptr + row).to(tl.int64) * history_stride
            row_count_ptr = count_ptr + row.to(tl.int64) * vocab_size
            start = part * BLOCK_L
            if PROMPT:
                for index in range(start, tl.minimum(start + BLOCK_L, tl.minimum(prompt_len, length))):
                    tl.atomic_max(row_count_ptr + tl.load(slot_history_ptr + index), 1 << 30)
            else:
                for index in range(tl.maximum(start, prompt_len), tl.minimum(start + BLOCK_L, length)):
                    tl.atomic_add(row_count_ptr + tl.load(slot_history_ptr + index), 1)


@triton.jit(do_not_specialize=["rows", "row_stride", "vocab_size", "num_parts"])
def penalize_kernel(
    logits_ptr,
    count_ptr,
    presence_ptr,
    frequency_ptr,
    repetition_ptr,
    rows,
    row_stride,
    vocab_size,
    num_parts,
    BLOCK_V: tl.constexpr,
):
    for item in range(tl.program_id(0), rows * num_parts, tl.num_programs(0)):
        row, part = item // num_parts, item % num_parts
        presence, frequency = tl.load(presence_ptr + row), tl.load(frequency_ptr + row)
        repetition = tl.load(repetition_ptr + row)
        if (presence != 0) | (frequency != 0) | (repetition != 1):
            token_V = part * BLOCK_V + tl.arange(0, BLOCK_V)
            inside_V = token_V < vocab_size
            count_V = tl.load(count_ptr + row.to(tl.int64) * vocab_size + token_V, mask=inside_V, other=0)
            output_V = (count_V & 0x3FFFFFFF).to(tl.float32)
            at_V = logits_ptr + row.to(tl.int64) * row_stride + token_V
            logits_V = tl.load(at_V, mask=inside_V, other=0.0)
            repeated_V = tl.where(logits_V > 0, logits_V / repetition, logits_V * repetition)
            y_V = tl.where(count_V == 0, logits_V, repeated_V) - frequency * output_V
            y_V = tl.where(output_V > 0, y_V - presence, y_V)
            tl.store(at_V, y_V, mask=inside_V)


def case(desc: PenalizeDesc) -> KernelCase:
    """`penalize_kernel` as it is launched."""
    return KernelCase(
        kernel=penalize_kernel,
        signature=(
            ("logits_ptr", "*fp32"),
            ("count_ptr", "*i32"),
            ("presence_ptr", "*fp32"),
            ("frequency_ptr", "*fp32"),
            ("repetition_ptr", "*fp32"),
            ("rows", "i32"),
            ("row_stride", "i32"),
            ("vocab_size", "i32"),
            ("num_parts", "i32"),
        ),
        constants={"BLOCK_V": pick_config(desc).block_v},
        options={},
    )


def count_case(desc: PenalizeDesc, prompt: bool) -> KernelCase:
    """`count_tokens_kernel` as it is launched, for prompt or for output tokens."""
    return KernelCase(
        kernel=count_tokens_kernel,
        signature=(
            ("history_ptr", "*i32"),
            ("slot_ptr", "*i32"),
            ("prompt_len_ptr", "*i32"),
            ("length_ptr", "*i32"),
            ("presence_ptr", "*fp32"),
            ("frequency_ptr", "*fp32"),
            ("repetition_ptr", "*fp32"),
            ("count_ptr", "*i32"),
            ("rows", "i32"),
            ("history_stride", "i32"),
            ("vocab_size", "i32"),
            ("num_parts", "i32"),
        ),
        constants={"PROMPT": prompt, "BLOCK_L": pick_config(desc).block_l},
        options={},
    )


def cases() -> Iterator[KernelCase]:
    """Every case of this file."""
    for desc in descriptions():
        yield from (count_case(desc, True), count_case(desc, False), case(desc))


def refuse(spec: LogitsSpec) -> str:
    """Every vocabulary is served."""
    return ""


def make_penalize(spec: LogitsSpec, soc: Soc, launcher: Launcher) -> Callable[..., None]:
    """penalize(logits_RV, history_SL, slot_R, prompt_len_R, length_R, presence_R, frequency_R, repetition_R).

    In place. float32 but history, slots and lengths int32. logits and history may be strided in their rows.
    """
    desc, grid, vocab_size = PenalizeDesc(), (soc.vector_cores,), spec.vocab_size
    counts = [launcher.prepare(count_case(desc, prompt)) for prompt in (True, False)]
    launch = launcher.prepare(case(desc))
    block_l, parts = pick_config(desc).block_l, -(-vocab_size // pick_config(desc).block_v)

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
        rows, width = logits_RV.shape[0], history_SL.shape[1]
        if not rows:
            return
        settings = (presence_R, frequency_R, repetition_R)
        count_RV = logits_RV.new_zeros((rows, vocab_size), dtype=torch.int32)
        lengths = (prompt_len_R, length_R)
        stride, history_parts = history_SL.stride(0), -(-width // block_l)
        for count in counts:
            count(grid, history_SL, slot_R, *lengths, *settings, count_RV, rows, stride, vocab_size, history_parts)
        launch(grid, logits_RV, count_RV, *settings, rows, logits_RV.stride(0), vocab_size, parts)

    return penalize

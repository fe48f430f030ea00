"""Changing logits before sampling: penalties, bias, bitmask. All in place on float32 `[R, V]`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from isoinfer.backends.ops.composed import torch_composition
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsSpec:
    """Width of the logits."""

    vocab_size: int


def penalize_reference(
    static: LogitsSpec,
    logits_RV: torch.Tensor,
    history_SL: torch.Tensor,
    slot_R: torch.Tensor,
    prompt_len_R: torch.Tensor,
    length_R: torch.Tensor,
    presence_R: torch.Tensor,
    frequency_R: torch.Tensor,
    repetition_R: torch.Tensor,
) -> None:
    """Row r's tokens are history_SL[slot_R[r], :length_R[r]], the first prompt_len_R[r] of them its prompt.

    Repetition first, over all of them (positive logits divided, others multiplied); then frequency times
    count and presence are subtracted, over output tokens only. History past the length may hold anything.
    """
    tokens_RL = history_SL[slot_R.long()].long()
    index_1L = torch.arange(tokens_RL.shape[1], device=tokens_RL.device)[None, :]
    used_RL = index_1L < length_R[:, None]
    output_RL = used_RL & (index_1L >= prompt_len_R[:, None])
    tokens_RL = torch.where(used_RL, tokens_RL, 0)
    zeros_RV = torch.zeros_like(logits_RV)
    seen_RV = zeros_RV.scatter_add(1, tokens_RL, used_RL.to(zeros_RV.dtype)) > 0
    count_RV = zeros_RV.scatter_add(1, tokens_RL, output_RL.to(zeros_RV.dtype))
    repetition_R1 = repetition_R.to(logits_RV.dtype)[:, None]
    repeated_RV = torch.where(logits_RV > 0, logits_RV / repetition_R1, logits_RV * repetition_R1)
    y_RV = torch.where(seen_RV, repeated_RV, logits_RV)
    y_RV = y_RV - frequency_R.to(y_RV.dtype)[:, None] * count_RV
    logits_RV.copy_(y_RV - presence_R.to(y_RV.dtype)[:, None] * (count_RV > 0))


def bias_logits_reference(
    static: LogitsSpec, logits_RV: torch.Tensor, row_M: torch.Tensor, token_M: torch.Tensor, value_M: torch.Tensor
) -> None:
    """logits[row, token] += value for each entry; entries may repeat; -inf bans a token."""
    logits_RV.index_put_((row_M.long(), token_M.long()), value_M.to(logits_RV.dtype), accumulate=True)


def mask_logits_reference(static: LogitsSpec, logits_RV: torch.Tensor, bitmask_RW: torch.Tensor) -> None:
    """Token t stays if bit t % 32 of word t // 32 is set, and becomes -inf otherwise."""
    token_V = torch.arange(static.vocab_size, device=logits_RV.device)
    allowed_RV = (bitmask_RW[:, token_V // 32] >> (token_V % 32)) & 1
    logits_RV.masked_fill_(allowed_RV == 0, -torch.inf)


def _penalize_condition(
    static: LogitsSpec,
    logits_RV: torch.Tensor,
    history_SL: torch.Tensor,
    slot_R: torch.Tensor,
    prompt_len_R: torch.Tensor,
    length_R: torch.Tensor,
    presence_R: torch.Tensor,
    frequency_R: torch.Tensor,
    repetition_R: torch.Tensor,
) -> torch.Tensor:
    """Sizes add up: penalties that make everything larger, on the largest that repetition makes of a logit."""
    strength_R = torch.maximum(repetition_R, 1 / repetition_R)
    size_RV = logits_RV.abs() * strength_R[:, None]
    plus = (-presence_R.abs(), -frequency_R.abs(), torch.ones_like(repetition_R))
    penalize_reference(static, size_RV, history_SL, slot_R, prompt_len_R, length_R, *plus)
    return size_RV


def _bias_condition(
    static: LogitsSpec, logits_RV: torch.Tensor, row_M: torch.Tensor, token_M: torch.Tensor, value_M: torch.Tensor
) -> torch.Tensor:
    size_RV = logits_RV.abs()
    finite_M = torch.where(torch.isinf(value_M), torch.zeros_like(value_M), value_M.abs())
    bias_logits_reference(static, size_RV, row_M, token_M, finite_M)
    return size_RV


def _penalize_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    for label, V, L in (("mixed", 97, 24), ("vocab-of-one-word", 32, 7)):
        history = torch.randint(0, min(V, 12), (5, L), generator=gen, dtype=torch.int32)
        length = torch.tensor([L, L - 3, 1, 4], dtype=torch.int32)
        prompt_len = torch.tensor([L // 2, 2, 1, 4], dtype=torch.int32)
        slot = torch.tensor([4, 0, 2, 3], dtype=torch.int32)
        for r in range(4):
            history[slot[r], length[r] :] = -1  # must not be read as a token
        args = (
            3 * torch.randn(4, V, generator=gen),
            history,
            slot,
            prompt_len,
            length,
            torch.tensor([0.5, -0.75, 1.5, 0.0]),
            torch.tensor([0.25, 0.0, 2.0, -0.5]),
            torch.tensor([1.3, 1.0, 0.8, 2.0]),
        )
        yield Sample(label=label, static=LogitsSpec(vocab_size=V), args=args)


def _bias_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    cases: tuple[tuple[str, list[int], list[int], list[float]], ...] = (
        ("add-and-ban", [0, 0, 2, 1], [5, 0, 50, 7], [1.5, -100.0, -torch.inf, 0.25]),
        ("repeats", [1, 1, 0], [9, 9, 9], [0.5, 0.25, -2.0]),
        ("none", [], [], []),
    )
    for label, row, token, value in cases:
        entries = (torch.tensor(row, dtype=torch.int32), torch.tensor(token, dtype=torch.int32), torch.tensor(value))
        logits = torch.randn(3, 51, generator=gen)
        yield Sample(label=label, static=LogitsSpec(vocab_size=51), args=(logits, *entries))


def _mask_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    for label, R, V in (("one-row", 1, 32), ("odd", 3, 75), ("words", 2, 128)):
        mask = torch.randint(-(2**31), 2**31, (R, -(-V // 32)), generator=gen, dtype=torch.int64).to(torch.int32)
        mask[0, 0] = -1
        logits = torch.randn(R, V, generator=gen)
        yield Sample(label=label, static=LogitsSpec(vocab_size=V), args=(logits, mask))


PENALIZE = OpSpec(
    name="penalize",
    family="sample",
    signature="penalize(logits_RV, history_SL, slot_R, prompt_len_R, length_R, presence_R, frequency_R, repetition_R)",
    static_type=LogitsSpec,
    reference=penalize_reference,
    samples=_penalize_samples,
    error=ErrorModel(kind="float", condition=_penalize_condition),
    writes=("logits_RV",),
    decomposition=torch_composition(penalize_reference),
)

BIAS_LOGITS = OpSpec(
    name="bias_logits",
    family="sample",
    signature="bias_logits(logits_RV, row_M, token_M, value_M)",
    static_type=LogitsSpec,
    reference=bias_logits_reference,
    samples=_bias_samples,
    error=ErrorModel(kind="float", condition=_bias_condition),
    writes=("logits_RV",),
    decomposition=torch_composition(bias_logits_reference),
)

MASK_LOGITS = OpSpec(
    name="mask_logits",
    family="sample",
    signature="mask_logits(logits_RV, bitmask_RW)",
    static_type=LogitsSpec,
    reference=mask_logits_reference,
    samples=_mask_samples,
    error=ErrorModel(kind="exact"),
    writes=("logits_RV",),
    decomposition=torch_composition(mask_logits_reference),
)

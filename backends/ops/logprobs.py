"""Log-probabilities of chosen tokens, their ranks, and the best alternatives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from isoinfer.backends.ops.composed import torch_composition
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobsSpec:
    """`num` best tokens are returned beside the chosen one; it may be 0."""

    vocab_size: int
    num: int


def logprobs_reference(
    static: LogprobsSpec, logits_RV: torch.Tensor, token_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """logprob `[R]`, 1-based rank `[R]` int32, top ids `[R, num]` int32 (ties: lower id first), their logprobs."""
    chosen_R1 = logits_RV.gather(-1, token_R.long()[:, None])
    rank_R = 1 + (logits_RV > chosen_R1).sum(-1)
    lse_R1 = torch.logsumexp(logits_RV, dim=-1, keepdim=True)
    best_RV, order_RV = torch.sort(logits_RV, dim=-1, descending=True, stable=True)
    top_logprobs_RX = best_RV[:, : static.num] - lse_R1
    return (
        (chosen_R1 - lse_R1)[:, 0],
        rank_R.to(torch.int32),
        order_RV[:, : static.num].to(torch.int32),
        top_logprobs_RX,
    )


def _condition(static: LogprobsSpec, logits_RV: torch.Tensor, token_R: torch.Tensor) -> dict[str, torch.Tensor]:
    largest_R = torch.where(torch.isinf(logits_RV), 0, logits_RV.abs()).amax(-1)
    size_R = 2 * largest_R + torch.logsumexp(logits_RV, dim=-1).abs() + 1
    return {"logprob_R": size_R, "top_logprobs_RX": size_R[:, None].expand(-1, static.num)}


def _samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    for label, R, V, num in (("own-only", 1, 50, 0), ("five", 4, 301, 5), ("all", 2, 6, 6)):
        logits = 4 * torch.randn(R, V, generator=gen)
        token = torch.randint(0, V, (R,), generator=gen, dtype=torch.int32)
        yield Sample(label=label, static=LogprobsSpec(vocab_size=V, num=num), args=(logits, token))
    ties = torch.tensor([[1.0, 3.0, 3.0, -torch.inf, 1.0]])
    static = LogprobsSpec(vocab_size=5, num=3)
    yield Sample(label="ties-banned", static=static, args=(ties, torch.tensor([4], dtype=torch.int32)))


LOGPROBS = OpSpec(
    name="logprobs",
    family="sample",
    signature="logprobs(logits_RV, token_R) -> (logprob_R, rank_R, top_ids_RX, top_logprobs_RX)",
    static_type=LogprobsSpec,
    reference=logprobs_reference,
    samples=_samples,
    error=ErrorModel(kind="float", condition=_condition),
    decomposition=torch_composition(logprobs_reference),
)

"""Drawing one token per row: argmax, and Gumbel-max sampling with top-k, min-p and top-p.

Stateless: the result depends on the row's logits, its parameters, seed and position, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from isoinfer.backends.ops.composed import torch_composition
from isoinfer.backends.ops.logits import LogitsSpec
from isoinfer.backends.ops.philox import SAMPLE_STREAM, gumbel
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample


def argmax_reference(static: LogitsSpec, logits_RV: torch.Tensor) -> torch.Tensor:
    """The index of the largest logit, the lowest one of equals. int32."""
    is_max_RV = logits_RV == logits_RV.amax(-1, keepdim=True)
    return is_max_RV.to(torch.uint8).argmax(-1).to(torch.int32)  # of equal ones argmax takes the first


def sample_reference(
    static: LogitsSpec,
    logits_RV: torch.Tensor,
    temperature_R: torch.Tensor,
    top_k_R: torch.Tensor,
    top_p_R: torch.Tensor,
    min_p_R: torch.Tensor,
    seed_R: torch.Tensor,
    position_R: torch.Tensor,
) -> torch.Tensor:
    """argmax over the kept tokens of logits / temperature + Gumbel(seed, position). Temperature 0: plain argmax."""
    scores_RV = sample_scores(static, logits_RV, temperature_R, top_k_R, top_p_R, min_p_R, seed_R, position_R)
    return argmax_reference(static, scores_RV)


def sample_scores(
    static: LogitsSpec,
    logits_RV: torch.Tensor,
    temperature_R: torch.Tensor,
    top_k_R: torch.Tensor,
    top_p_R: torch.Tensor,
    min_p_R: torch.Tensor,
    seed_R: torch.Tensor,
    position_R: torch.Tensor,
) -> torch.Tensor:
    """What the sampled token is the argmax of: -inf where a token is not kept, the logits where temperature is 0."""
    filtered_RV = filter_logits(logits_RV, temperature_R, top_k_R, top_p_R, min_p_R)
    noise_RV = gumbel(seed_R, position_R, SAMPLE_STREAM, static.vocab_size)
    return torch.where((temperature_R == 0)[:, None], logits_RV, filtered_RV + noise_RV.to(filtered_RV.dtype))


def filter_logits(
    logits_RV: torch.Tensor,
    temperature_R: torch.Tensor,
    top_k_R: torch.Tensor,
    top_p_R: torch.Tensor,
    min_p_R: torch.Tensor,
) -> torch.Tensor:
    """Logits / temperature (1 where it is 0), and -inf where a token is not kept: their softmax is what is sampled."""
    divisor_R = torch.where(temperature_R == 0, 1, temperature_R).to(logits_RV.dtype)
    scaled_RV = logits_RV / divisor_R[:, None]
    kept_RV = keep_top_k(scaled_RV, top_k_R)
    kept_RV &= keep_min_p(scaled_RV, min_p_R)
    kept_RV &= keep_top_p(scaled_RV.masked_fill(~kept_RV, -torch.inf), top_p_R)
    return scaled_RV.masked_fill(~kept_RV, -torch.inf)


def keep_top_k(logits_RV: torch.Tensor, top_k_R: torch.Tensor) -> torch.Tensor:
    """Tokens at least as large as the k-th largest, ties with it included. k <= 0 keeps all."""
    width = logits_RV.shape[-1]
    descending_RV = torch.sort(logits_RV, dim=-1, descending=True).values
    k_R = torch.where(top_k_R <= 0, width, top_k_R).clamp(max=width).long()
    return logits_RV >= descending_RV.gather(-1, k_R[:, None] - 1)


def keep_min_p(logits_RV: torch.Tensor, min_p_R: torch.Tensor) -> torch.Tensor:
    """Tokens with at least `min_p` times the probability of the best one."""
    ratio_RV = torch.exp(logits_RV - logits_RV.amax(-1, keepdim=True))
    return (ratio_RV >= min_p_R.to(ratio_RV.dtype)[:, None]) | (min_p_R <= 0)[:, None]


def keep_top_p(logits_RV: torch.Tensor, top_p_R: torch.Tensor) -> torch.Tensor:
    """The smallest set of best tokens whose probability reaches `top_p`; at least one; 1 or more keeps all."""
    descending_RV, order_RV = torch.sort(logits_RV, dim=-1, descending=True, stable=True)
    p_RV = torch.softmax(descending_RV, dim=-1)
    before_RV = p_RV.cumsum(-1) - p_RV
    kept_RV = (before_RV < top_p_R.to(p_RV.dtype)[:, None]) | (top_p_R >= 1)[:, None]
    kept_RV[:, 0] = True
    return torch.zeros_like(kept_RV).scatter(1, order_RV, kept_RV)


def _argmax_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    for label, R, V in (("one-row", 1, 33), ("rows", 5, 1000)):
        yield Sample(label=label, static=LogitsSpec(vocab_size=V), args=(torch.randn(R, V, generator=gen),))
    ties = torch.tensor([[0.0, 2.0, -1.0, 2.0, 2.0], [-torch.inf, -torch.inf, -3.0, -3.0, -torch.inf]])
    yield Sample(label="ties", static=LogitsSpec(vocab_size=5), args=(ties,))


def _sample_samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    rows = (  # temperature, top_k, top_p, min_p
        (0.0, 0, 1.0, 0.0),
        (1.0, 0, 1.0, 0.0),
        (0.7, 5, 1.0, 0.0),
        (1.3, 0, 0.6, 0.0),
        (1.0, -1, 1.0, 0.2),
        (0.9, 20, 0.9, 0.05),
        (2.0, 1, 1.0, 0.0),
        (0.0, 3, 0.5, 0.5),
        (1.0, 10_000, 1e-6, 0.0),
    )
    for label, V in (("odd", 203), ("words", 1024), ("tiny", 3)):
        logits = 2 * torch.randn(len(rows), V, generator=gen)
        logits[1, : V // 2] = -torch.inf
        temperature, top_k, top_p, min_p = (torch.tensor(column) for column in zip(*rows, strict=True))
        seeds = torch.randint(-(2**62), 2**62, (len(rows),), generator=gen, dtype=torch.int64)
        positions = torch.randint(0, 100_000, (len(rows),), generator=gen, dtype=torch.int32)
        args = (logits, temperature, top_k.to(torch.int32), top_p, min_p, seeds, positions)
        yield Sample(label=label, static=LogitsSpec(vocab_size=V), args=args)
    ties = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]]).repeat(2, 1)
    params = (torch.ones(2), torch.tensor([2, 0], dtype=torch.int32), torch.tensor([1.0, 0.5]), torch.zeros(2))
    draw = (torch.tensor([7, 8]), torch.tensor([3, 4], dtype=torch.int32))
    yield Sample(label="ties", static=LogitsSpec(vocab_size=5), args=(ties, *params, *draw))


ARGMAX = OpSpec(
    name="argmax",
    family="sample",
    signature="argmax(logits_RV) -> token_R",
    static_type=LogitsSpec,
    reference=argmax_reference,
    samples=_argmax_samples,
    error=ErrorModel(kind="tokens"),
    decomposition=torch_composition(argmax_reference),
)

SAMPLE = OpSpec(
    name="sample",
    family="sample",
    signature="sample(logits_RV, temperature_R, top_k_R, top_p_R, min_p_R, seed_R, position_R) -> token_R",
    static_type=LogitsSpec,
    reference=sample_reference,
    samples=_sample_samples,
    error=ErrorModel(kind="tokens", condition=sample_scores),
    decomposition=torch_composition(sample_reference),
)

"""What an op is: one declaration that fallback, tests, conformance cases, benchmarks and docs are made from.

Shape suffixes used by every op file:
    T  tokens of a step, all rows concatenated      R  rows (requests) of a step
    H  hidden size                                  I  intermediate size
    N  query heads        K  KV heads               D  head dim
    B  KV blocks          S  tokens in a KV block   V  vocabulary
    E  experts            X  experts per token      P  positions in a table
    L  history length     M  entries of a sparse list
    G  rows of the previous round (in remap, X = R + 1 and K drafts of a row)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

ErrorKind = Literal["float", "exact", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorModel:
    """How far a provider may be from the float64 truth on the same quantised inputs.

    float: |y - y64| <= c_out * ulp_out(y64) + c_acc * sqrt(K) * u_acc * S elementwise, where S is the
    condition sum |a||b| from `condition`, K the reduction length from `reduction`, u_acc the unit
    roundoff of the declared accumulator; and the NMSE of the worst row is at most `nmse_factor` times
    that of the same-precision CPU reference. exact: bitwise. tokens: equal token ids for equal uniforms;
    where `condition` gives the scores `[R, V]` a token may differ only by a tie within rounding.
    `condition(static, *float64 args)` returns a tensor, or one per output where an op has several; an
    output without one has |y64|.
    """

    kind: ErrorKind
    c_out: float = 2.0
    c_acc: float = 4.0
    nmse_factor: float = 4.0
    reduction: Callable[[Any], int] = field(default=lambda static: 1)
    condition: Callable[..., torch.Tensor | Mapping[str, torch.Tensor]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One generated case: a static spec and runtime arguments in the order of the op's signature."""

    label: str
    static: Any
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """One op. `reference(static, *args)` in plain torch is the definition; in float64 it is the truth.

    `writes` names the arguments it changes in place. `decomposition` (fused ops only) computes the same
    through other ops: `decomposition(bind, static)` returns the callable. `samples(dtype, seed)` yields
    cases. `required` ops must be provided by a backend; all others may fall back to the decomposition.
    `clobbers` names arguments whose contents afterwards are unspecified. `paged_samples(dtype, seed,
    block_size)` is there for ops over paged KV, so that a backend is tested at its own block size.
    """

    name: str
    family: str
    signature: str
    static_type: type
    reference: Callable[..., Any]
    samples: Callable[[torch.dtype, int], Iterator[Sample]]
    error: ErrorModel
    writes: tuple[str, ...] = ()
    decomposition: Callable[[Callable[..., Callable[..., Any]], Any], Callable[..., Any]] | None = None
    required: bool = False
    clobbers: tuple[str, ...] = ()
    paged_samples: Callable[[torch.dtype, int, int], Iterator[Sample]] | None = None

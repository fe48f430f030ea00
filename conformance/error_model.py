"""Judging one op call by the op's error model: elementwise bound, row NMSE, bitwise, or token rules.

No tolerance is set here: the bounds follow from the dtype, the declared accumulator and the op's own
condition. NaN equals NaN (untouched poison); anything else that is not finite must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from isoinfer.backends.ops.dtypes import dtype_name, unit_roundoff
from isoinfer.backends.ops.spec import OpSpec
from isoinfer.conformance.arguments import Tensors, copies, float64_copies, outcome

GUMBEL_SIZE = 17.0
"""Largest size of the 23-bit Gumbel noise: the rounding of scores scales with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement of one output; of a call: the worst of its outputs.

    `ratio` is the largest error over bound, at `index`, where `error` and `bound` are taken; `nmse`
    over `nmse_bound` is that of the worst row (0 and 0 where it does not apply).
    """

    passed: bool
    output: str
    error: float = 0.0
    bound: float = 0.0
    ratio: float = 0.0
    index: tuple[int, ...] = ()
    nmse: float = 0.0
    nmse_bound: float = 0.0
    reason: str = ""


def check(
    op: OpSpec,
    static: Any,
    args: tuple[Any, ...],
    actual: Mapping[str, torch.Tensor],
    reference64: Mapping[str, torch.Tensor],
    accumulate_dtype: str = "float32",
) -> Verdict:
    """Judge `actual` (host tensors by output name) of a call with `args`, given as they were before it.

    `reference64` is `truth(op, static, args)`. Returns the first failing or else the worst verdict.
    """
    same = outcome(op, static, copies(args))
    verdicts = [_mismatch(name, actual.get(name), expected) for name, expected in same.items()]
    found = [verdict for verdict in verdicts if verdict is not None]
    if not found and op.error.kind == "float":
        found = _check_floats(op, static, args, actual, reference64, same, accumulate_dtype)
    elif not found and op.error.kind == "tokens":
        found = [_check_tokens(op, static, args, name, actual[name], same[name], accumulate_dtype) for name in same]
    elif not found:
        found = [_check_exact(name, actual[name], same[name]) for name in same]
    return min(found, key=lambda verdict: (verdict.passed, -verdict.ratio))


def _mismatch(name: str, actual: torch.Tensor | None, expected: torch.Tensor) -> Verdict | None:
    if actual is None:
        return Verdict(passed=False, output=name, ratio=math.inf, reason="the output is missing")
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        got, want = (f"{dtype_name(t.dtype)}{list(t.shape)}" for t in (actual, expected))
        return Verdict(passed=False, output=name, ratio=math.inf, reason=f"got {got}, expected {want}")
    return None


def _check_exact(name: str, actual: torch.Tensor, expected: torch.Tensor) -> Verdict:
    different = actual.contiguous().view(torch.uint8) != expected.contiguous().view(torch.uint8)
    if not different.any():
        return Verdict(passed=True, output=name)
    byte = int(different.flatten().to(torch.uint8).argmax())
    index = _unravel(byte // expected.element_size(), expected.shape)
    return Verdict(passed=False, output=name, ratio=math.inf, index=index, reason="not bitwise equal")


def _check_floats(
    op: OpSpec,
    static: Any,
    args: tuple[Any, ...],
    actual: Mapping[str, torch.Tensor],
    reference64: Mapping[str, torch.Tensor],
    same: Tensors,
    accumulate_dtype: str,
) -> list[Verdict]:
    sizes = _conditions(op, static, args, list(same))
    verdicts = []
    for name, expected in same.items():
        if not expected.is_floating_point():
            verdicts.append(_check_exact(name, actual[name], expected))
            continue
        true = reference64[name]
        size = sizes.get(name, true.abs())
        verdicts.append(_check_float(op, static, name, actual[name], expected, true, size, accumulate_dtype))
    return verdicts


def _conditions(op: OpSpec, static: Any, args: tuple[Any, ...], names: list[str]) -> Mapping[str, torch.Tensor]:
    if op.error.condition is None:
        return {}
    size = op.error.condition(static, *float64_copies(args))
    return {names[0]: size} if isinstance(size, torch.Tensor) else size


def _check_float(
    op: OpSpec,
    static: Any,
    name: str,
    actual: torch.Tensor,
    expected: torch.Tensor,
    true: torch.Tensor,
    size: torch.Tensor,
    accumulate_dtype: str,
) -> Verdict:
    model, length = op.error, op.error.reduction(static)
    u_acc, u_out = unit_roundoff(accumulate_dtype), torch.finfo(actual.dtype).eps / 2
    error = _errors(actual, true)
    bound = model.c_out * ulp(true, actual.dtype) + model.c_acc * length**0.5 * u_acc * _finite(size).abs()
    ratio = torch.where(error == 0, 0.0, error / bound)
    # An equally good provider sums in another order: its roundings are as many, not the same, and they are
    # relative to the terms of the sum (size), which cancel to less in the result.
    floor = u_out**2 / 4 + length * u_acc**2 / 4 * max(1.0, _worst_nmse(_finite(size).abs().expand_as(true), true))
    nmse = _worst_nmse(error, true)
    nmse_bound = model.nmse_factor * max(_worst_nmse(_errors(expected, true), true), floor)
    worst = int(ratio.argmax()) if ratio.numel() else 0
    largest = float(ratio.flatten()[worst]) if ratio.numel() else 0.0
    reason = "error above the bound" if not largest <= 1 else "row NMSE above the bound" if nmse > nmse_bound else ""
    return Verdict(
        passed=not reason,
        output=name,
        error=float(error.flatten()[worst]) if ratio.numel() else 0.0,
        bound=float(bound.flatten()[worst]) if ratio.numel() else 0.0,
        ratio=largest,
        index=_unravel(worst, true.shape) if ratio.numel() else (),
        nmse=nmse,
        nmse_bound=nmse_bound,
        reason=reason,
    )


def ulp(true: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distance of neighbouring values of `dtype` at the size of each element of `true` (float64)."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(_finite(true)).exponent
    power = torch.where(true == 0, 0.0, torch.ldexp(torch.ones_like(true), exponent - 1))
    return info.eps * power.clamp(min=info.smallest_normal)


def _errors(actual: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    wide = actual.to(torch.float64)
    equal = (wide == true) | (wide.isnan() & true.isnan())
    error = torch.where(equal, 0.0, (wide - true).abs())
    return torch.where(error.isnan(), torch.inf, error)


def _finite(x: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)


def _worst_nmse(error: torch.Tensor, true: torch.Tensor) -> float:
    """Normalised mean squared error of the worst row (last dimension)."""
    if not error.numel():
        return 0.0
    squares, energy = error.square().sum(-1), _finite(true).square().sum(-1)
    return float(torch.where(squares == 0, 0.0, squares / energy.clamp(min=torch.finfo(torch.float64).tiny)).max())


def _check_tokens(
    op: OpSpec,
    static: Any,
    args: tuple[Any, ...],
    name: str,
    actual: torch.Tensor,
    expected: torch.Tensor,
    accumulate_dtype: str,
) -> Verdict:
    """Equal tokens, or where the op has scores: a token whose score ties with the best within rounding."""
    if torch.equal(actual, expected) or op.error.condition is None:
        return _check_exact(name, actual, expected)
    scores = _conditions(op, static, args, [name])[name]
    if bool(((actual < 0) | (actual >= scores.shape[-1])).any()):
        return Verdict(passed=False, output=name, ratio=math.inf, reason="a token outside the vocabulary")
    best_R = scores.gather(-1, expected.long()[:, None])[:, 0]
    gap_R = best_R - scores.gather(-1, actual.long()[:, None])[:, 0]
    bound_R = op.error.c_acc * unit_roundoff(accumulate_dtype) * (GUMBEL_SIZE + best_R.abs())
    ratio_R = torch.where(actual == expected, 0.0, gap_R / bound_R)
    row = int(ratio_R.argmax())
    return Verdict(
        passed=bool(ratio_R[row] <= 1),
        output=name,
        error=float(gap_R[row]),
        bound=float(bound_R[row]),
        ratio=float(ratio_R[row]),
        index=(row,),
        reason="" if ratio_R[row] <= 1 else f"token {int(actual[row])} instead of {int(expected[row])}",
    )


def _unravel(flat: int, shape: torch.Size) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))

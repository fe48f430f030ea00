"""Running every op's samples on a real backend and judging each by the op's error model.

The candidate runs before the reference, on fresh copies, twice; arguments that it may not write are
compared byte for byte before and after. What a backend does not support is reported, never passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

from isoinfer.backends.interface import Backend, Support
from isoinfer.backends.ops import ALL_OPS
from isoinfer.backends.ops.dtypes import dtype_name
from isoinfer.backends.ops.spec import OpSpec, Sample
from isoinfer.conformance.arguments import Tensors, truth
from isoinfer.conformance.error_model import Verdict, check
from isoinfer.conformance.placement import execute, kv_spec, place, poison_allocator, snapshot

DEFAULT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ALL_LABELS = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One case. `label` is "*" where a whole op is unsupported in `dtype`. `reason` is set unless passed."""

    op: str
    label: str
    dtype: str
    status: Literal["passed", "failed", "unsupported"]
    reason: str = ""
    provider: str = ""
    verdict: Verdict | None = None

    @property
    def id(self) -> str:
        """The printable name of the case."""
        return f"{self.op}[{self.label}-{self.dtype}]"


def run_op_cases(
    backend: Backend,
    ops: Iterable[OpSpec] = tuple(ALL_OPS.values()),
    dtypes: Sequence[torch.dtype] = DEFAULT_DTYPES,
    seed: int = 0,
) -> list[CaseResult]:
    """All samples of `ops` on `backend`, in `dtypes` (ops whose spec names none: once, as float32)."""
    return [result for op in ops for dtype in _dtypes(op, dtypes) for result in _run_op(backend, op, dtype, seed)]


def _dtypes(op: OpSpec, dtypes: Sequence[torch.dtype]) -> Sequence[torch.dtype]:
    return dtypes if _has_dtype(op) else (torch.float32,)


def _has_dtype(op: OpSpec) -> bool:
    """Not so of ops over logits, which are float32, and of those over ints alone."""
    return "dtype" in {field.name for field in fields(op.static_type)}


def _run_op(backend: Backend, op: OpSpec, dtype: torch.dtype, seed: int) -> Iterator[CaseResult]:
    name, known = dtype_name(dtype), backend.capabilities.dtypes
    if _has_dtype(op) and name not in known:
        reason = f"dtype {name} is not among the backend's {', '.join(known)}"
        yield CaseResult(op=op.name, label=ALL_LABELS, dtype=name, status="unsupported", reason=reason)
        return
    for sample in _samples(backend, op, dtype, seed):
        yield run_case(backend, op, sample, name)


def _samples(backend: Backend, op: OpSpec, dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    if op.paged_samples is None:
        return op.samples(dtype, seed)
    block_size = backend.kv_layout([kv_spec(1, 64, dtype_name(dtype))]).block_size
    return op.paged_samples(dtype, seed, block_size)


def run_case(backend: Backend, op: OpSpec, sample: Sample, dtype: str) -> CaseResult:
    """One sample. An exception of the backend is a failure of the case, with the exception as reason."""
    try:
        support = backend.support(op, sample.static)
        if support.status == "unsupported":
            return _result(op, sample, dtype, support, "unsupported", support.reason or "no reason given")
        problem, actual = _run_twice(backend, op, sample, support)
    except Exception as error:  # whatever a third-party backend raises belongs to this case only
        reason = f"{type(error).__name__}: {error}"
        return CaseResult(op=op.name, label=sample.label, dtype=dtype, status="failed", reason=reason)
    reference64 = truth(op, sample.static, sample.args)
    verdict = check(op, sample.static, sample.args, actual, reference64, support.accumulate_dtype)
    problem = problem or (f"{verdict.output}: {verdict.reason}" if not verdict.passed else "")
    return _result(op, sample, dtype, support, "failed" if problem else "passed", problem, verdict)


def _run_twice(backend: Backend, op: OpSpec, sample: Sample, support: Support) -> tuple[str, Tensors]:
    fn = backend.bind(op, sample.static)
    problem, actual = _run_once(backend, op, sample, fn)
    if support.deterministic and not problem:
        problem, again = _run_once(backend, op, sample, fn)
        different = [name for name in actual if not _same_bytes(actual[name], again[name])]
        if different:
            problem = f"declared deterministic, but {', '.join(different)} differ between two runs"
    return problem, actual


def _run_once(backend: Backend, op: OpSpec, sample: Sample, fn: Callable[..., Any]) -> tuple[str, Tensors]:
    """What went wrong besides the numbers ("" if nothing), and all outputs."""
    stream = backend.stream()
    placement = place(backend, stream, op, sample)
    before = snapshot(backend, stream, placement)
    poison_allocator(backend, placement)
    outputs = execute(backend, stream, fn, placement)
    after = snapshot(backend, stream, placement)
    changed = [name for name in before if not _same_bytes(before[name], after[name])]
    forbidden = [name for name in changed if name.partition(".")[0] not in (*op.writes, *op.clobbers)]
    written = {name: tensor for name, tensor in after.items() if name.partition(".")[0] in op.writes}
    return f"changed {', '.join(forbidden)}, which it may not write" if forbidden else "", outputs | written


def _same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _result(
    op: OpSpec,
    sample: Sample,
    dtype: str,
    support: Support,
    status: Literal["passed", "failed", "unsupported"],
    reason: str,
    verdict: Verdict | None = None,
) -> CaseResult:
    return CaseResult(
        op=op.name,
        label=sample.label,
        dtype=dtype,
        status=status,
        reason=reason,
        provider=support.provider,
        verdict=verdict,
    )

"""Providers of ops, and the table that answers for a backend which of them serves an op.

A provider accepts or refuses a static spec with a reason. `explain` shows these answers; `bind` takes the
first that accepts. One whose kernel then cannot be built is passed over, loudly, and refuses from then on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from isoinfer.backends.interface import Support
from isoinfer.backends.ops import ALL_OPS, OpSpec
from isoinfer.errors import BackendError

Function = Callable[..., Any]


class KernelError(RuntimeError):
    """A kernel cannot be built on this device. The next provider serves the op."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One way to serve one op. `refuse(static)` gives the reason why not, or "" to accept.

    `make(static)` returns the function that `bind` hands out; it may raise KernelError.
    """

    name: str
    refuse: Callable[[Any], str]
    make: Callable[[Any], Function]
    accumulate_dtype: str = "float32"
    deterministic: bool = True
    batch_invariant: bool = True
    graph_safe: bool = False


class ProviderTable:
    """The providers of every op of one backend, in order of preference, and what comes after them.

    `batch_invariant`: providers that are not so are refused, as `--deterministic` asks.
    """

    def __init__(
        self,
        backend: str,
        find: Callable[[OpSpec], Sequence[Provider]],
        *,
        fallback: str,
        batch_invariant: bool = False,
    ) -> None:
        self._backend, self._find, self._fallback = backend, find, fallback
        self._batch_invariant = batch_invariant
        self._failed: dict[tuple[str, str, Any], str] = {}

    def supports(self, op: OpSpec, static: Any) -> list[Support]:
        """The answer of every provider of `op`, in order."""
        return [self._answer(op, provider, static) for provider in self._find(op)]

    def support(self, op: OpSpec, static: Any) -> Support:
        """The first provider that accepts, else the fallback's answer with every refusal as the reason."""
        answers = self.supports(op, static)
        accepted = next((answer for answer in answers if answer.status == "supported"), None)
        if accepted is not None:
            return accepted
        reasons = "; ".join(f"{answer.provider}: {answer.reason}" for answer in answers) or "no provider"
        if op.decomposition is not None and self._fallback != "fail":
            return Support(status="supported", provider="composed", reason=reasons)
        return Support(status="unsupported", provider="none", reason=reasons)

    def bind(self, op: OpSpec, static: Any) -> Function:
        """The function of the first provider that accepts. BackendError with the reasons where there is none."""
        assert op.name in ALL_OPS, op.name
        assert isinstance(static, op.static_type), (op.name, static)
        for provider in self._find(op):
            if not self._refusal(op, provider, static):
                try:
                    return provider.make(static)
                except KernelError as error:
                    self._pass_over(op, provider, static, error)
        support = self.support(op, static)
        if support.status != "supported":
            raise BackendError(f"{self._backend} cannot serve {op.name} with {static}: {support.reason}")
        assert op.decomposition is not None
        return op.decomposition(self.bind, static)

    def _refusal(self, op: OpSpec, provider: Provider, static: Any) -> str:
        if self._batch_invariant and not provider.batch_invariant:
            return "a row's bits would depend on the rows beside it, which --deterministic rules out"
        return self._failed.get((op.name, provider.name, static)) or provider.refuse(static)

    def _answer(self, op: OpSpec, provider: Provider, static: Any) -> Support:
        reason = self._refusal(op, provider, static)
        return Support(
            status="unsupported" if reason else "supported",
            provider=provider.name,
            reason=reason,
            accumulate_dtype=provider.accumulate_dtype,
            deterministic=provider.deterministic,
            batch_invariant=provider.batch_invariant,
            graph_safe=provider.graph_safe,
        )

    def _pass_over(self, op: OpSpec, provider: Provider, static: Any, error: KernelError) -> None:
        self._failed[op.name, provider.name, static] = f"its kernel cannot be built here: {error}"
        warnings.warn(f"{self._backend}: {provider.name} {op.name} cannot be built: {error}", stacklevel=3)

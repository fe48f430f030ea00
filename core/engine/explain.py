"""Notes which ops a model was built from, and asks the backend who serves them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from isoinfer.backends.evidence import Evidence, evidence_of
from isoinfer.backends.ops import OpSpec

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend


@dataclass(frozen=True, slots=True)
class BoundOp:
    """An op with one static spec."""

    op: OpSpec
    static: Any


class BindRecorder:
    """`Backend.bind` that also counts what was bound. Costs nothing when ops are called."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._counts: dict[tuple[str, str], tuple[BoundOp, int]] = {}

    def bind(self, op: OpSpec, static: Any) -> Callable[..., Any]:
        """Bind and note."""
        self.note(op, static)
        return self._backend.bind(op, static)

    def note(self, op: OpSpec, static: Any) -> None:
        """Count, without binding."""
        key = (op.name, repr(static))
        _, count = self._counts.get(key, (None, 0))
        self._counts[key] = (BoundOp(op, static), count + 1)

    def fallbacks(self) -> list[str]:
        """One line for each op that no provider of the backend serves directly, with the reason."""
        rows = (row for row in self.explain() if row["provider"] in ("composed", "reference"))
        return list(dict.fromkeys(f"fallback: {row['op']} is {row['provider']} ({row['reason']})" for row in rows))

    def explain(self) -> list[dict[str, Any]]:
        """One row for each op and static spec, in the order they were first bound."""
        evidence = evidence_of(self._backend.name)
        return [
            explain_op(self._backend, bound.op, bound.static, evidence, count) for bound, count in self._counts.values()
        ]


def explain_op(backend: Backend, op: OpSpec, static: Any, evidence: Evidence, count: int = 1) -> dict[str, Any]:
    """Who serves `op` with `static`, what shows that it works, and what every other provider said."""
    chosen = backend.support(op, static)
    row: dict[str, Any] = {"op": op.name, "count": count, "static": _plain(static)}
    row |= asdict(chosen)
    row["evidence"] = evidence.words(op.name, chosen.provider)
    row["others"] = [
        {"provider": answer.provider, "status": answer.status, "reason": answer.reason}
        for answer in backend.supports(op, static)
        if answer.provider != chosen.provider
    ]
    return row


def _plain(static: Any) -> dict[str, Any]:
    """A static spec as plain data."""
    return asdict(static)

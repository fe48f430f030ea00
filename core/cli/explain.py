"""`isoinfer explain`: which provider serves each op, and why others do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isoinfer.cli.exit_codes import DONE, SOME_FAILED
from isoinfer.cli.options import EngineOptions, JsonFlag
from isoinfer.cli.tables import print_table
from isoinfer.cli.terminal import print_json, print_note

if TYPE_CHECKING:
    from isoinfer.backends.interface import Backend
    from isoinfer.backends.ops.spec import OpSpec

SEED = 0
TITLES = ("op", "uses", "static spec", "provider", "status", "accumulate", "deterministic", "batch invariant", "why")


def explain(
    engine: EngineOptions,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Explain the ops of this model; without it, all ops.")
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Show which provider serves each op, and why others do not."""
    rows = _ops_of_backend(engine) if model is None else _ops_of_model(model, engine)
    if json:
        print_json(rows)
    else:
        print_table(TITLES, [_cells(row) for row in rows])
    unserved = [row for row in rows if row["status"] == "unsupported"]
    if unserved:
        print_note(f"{len(unserved)} of {len(rows)} op specs have no provider here; see --fallback")
    return SOME_FAILED if unserved else DONE


def _ops_of_model(model: str, options: EngineOptions) -> list[dict[str, Any]]:
    from isoinfer.cli.engine import open_engine

    with open_engine(model, options) as llm:
        return llm.explain()


def _ops_of_backend(options: EngineOptions) -> list[dict[str, Any]]:
    from isoinfer.backends.descriptor import BackendConfig
    from isoinfer.backends.ops import ALL_OPS
    from isoinfer.backends.registry import create_backend

    config = BackendConfig(
        dtype=options.dtype,
        deterministic=options.deterministic,
        fallback=options.fallback,
        threads=options.threads,
    )
    backend = create_backend(options.backend, config)
    for line in backend.describe():
        print_note(line)
    return [row for op in ALL_OPS.values() for row in _op_rows(backend, op)]


def _op_rows(backend: Backend, op: OpSpec) -> list[dict[str, Any]]:
    """One row per distinct answer over the op's sample specs, with the first spec that got it."""
    from isoinfer.backends.ops import torch_dtype
    from isoinfer.engine.explain import explain_op

    dtype = torch_dtype(backend.capabilities.default_dtype)
    rows: dict[str, dict[str, Any]] = {}
    for static in dict.fromkeys(sample.static for sample in op.samples(dtype, SEED)):
        row = explain_op(backend, op, static, count=0)
        answer = repr({name: value for name, value in row.items() if name != "static"})
        rows.setdefault(answer, row)["count"] += 1
    return list(rows.values())


def summarize(static: Mapping[str, Any]) -> str:
    """A static spec as `name=value` pairs, without those that are off."""
    return " ".join(
        f"{name}=({summarize(value)})" if isinstance(value, Mapping) else f"{name}={value}"
        for name, value in static.items()
        if value is not None and value is not False
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    others = (f"{other['provider']}: {other['reason'] or 'could too'}" for other in row["others"])
    why = "; ".join(part for part in (row["reason"], *others) if part)
    flags = ("yes" if row[name] else "no" for name in ("deterministic", "batch_invariant"))
    spec = summarize(row["static"])
    return row["op"], str(row["count"]), spec, row["provider"], row["status"], row["accumulate_dtype"], *flags, why

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
    from isoinfer.backends.evidence import Evidence
    from isoinfer.backends.interface import Backend
    from isoinfer.backends.ops.spec import OpSpec

SEED = 0
TITLES = (
    "op",
    "uses",
    "static spec",
    "provider",
    "status",
    "accumulate",
    "deterministic",
    "batch invariant",
    "evidence",
    "why",
)


def explain(
    engine: EngineOptions,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Explain the ops of this model; without it, all ops.")
    ] = None,
    assume: Annotated[
        str | None, typer.Option("--assume", help="Answer for this chip of --backend, which need not be here: sm_90.")
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Show which provider serves each op, how that is known to work, and why others do not serve it."""
    if model is not None and assume is None:
        rows = _ops_of_running_model(model, engine)
    else:
        rows = _ops_of_backend(model, engine, assume)
    if json:
        print_json(rows)
    else:
        print_table(TITLES, [_cells(row) for row in rows])
    unserved = [row for row in rows if row["status"] == "unsupported"]
    if unserved:
        print_note(f"{len(unserved)} of {len(rows)} op specs have no provider here; see --fallback")
    return SOME_FAILED if unserved else DONE


def _ops_of_running_model(model: str, options: EngineOptions) -> list[dict[str, Any]]:
    from isoinfer.cli.engine import open_engine

    with open_engine(model, options) as llm:
        return llm.explain()


def _ops_of_backend(model: str | None, options: EngineOptions, assume: str | None) -> list[dict[str, Any]]:
    """Without weights: of all ops, or of those that `model`'s config asks for."""
    from isoinfer.backends.descriptor import BackendConfig
    from isoinfer.backends.evidence import evidence_of
    from isoinfer.backends.ops import ALL_OPS
    from isoinfer.backends.registry import create_backend

    config = BackendConfig(
        dtype=options.dtype,
        deterministic=options.deterministic,
        fallback=options.fallback,
        threads=options.threads,
        assume=assume,
    )
    backend = create_backend(options.backend, config)
    for line in backend.describe():
        print_note(line)
    if model is not None:
        from isoinfer.engine.dry_build import bound_ops

        return bound_ops(model, backend, options.quantization, options.window_kv).explain()
    evidence = evidence_of(backend.name)
    return [row for op in ALL_OPS.values() for row in _op_rows(backend, op, evidence)]


def _op_rows(backend: Backend, op: OpSpec, evidence: Evidence) -> list[dict[str, Any]]:
    """One row per distinct answer over the op's sample specs, with the first spec that got it."""
    from isoinfer.backends.ops import torch_dtype
    from isoinfer.engine.explain import explain_op

    dtype = torch_dtype(backend.capabilities.default_dtype)
    if op.paged_samples is None:
        samples = op.samples(dtype, SEED)
    else:
        samples = op.paged_samples(dtype, SEED, backend.kv_layout([]).block_size)
    rows: dict[str, dict[str, Any]] = {}
    for static in dict.fromkeys(sample.static for sample in samples):
        row = explain_op(backend, op, static, evidence, count=0)
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
    spec, evidence = summarize(row["static"]), ", ".join(row["evidence"]) or "none"
    who = row["provider"], row["status"], row["accumulate_dtype"]
    return row["op"], str(row["count"]), spec, *who, *flags, evidence, why

"""Compiling every claim of a package, in several processes and once for equal content, and the table of the results."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from types import ModuleType

import triton

from isoinfer.conformance.cubin import MAX_SHARED, TARGETS, Cubin, compile_case, content_hash
from isoinfer.conformance.kernel_files import Claim, claims, modules

COLUMNS = tuple(field.name for field in fields(Cubin))
KEEP_SECONDS = 30 * 24 * 3600
"""Compiled results that nobody has asked for this long leave the cache."""


def all_claims(package: ModuleType, targets: Sequence[int] = TARGETS) -> list[Claim]:
    """The claims of every file of `package` for every target."""
    return [claim for module in modules(package) for target in targets for claim in claims(module, target)]


def compile_claims(
    wanted: Sequence[Claim], cache: Path | None, processes: int = 2, tell: Callable[[int, int], None] | None = None
) -> tuple[list[Cubin], list[str]]:
    """What `wanted` compile to, in the table's order, and the errors of those that do not compile.

    `cache`: a folder of earlier results. `tell(done, of)` is called as those that are not in it are finished.
    """
    paths = [cache / f"{content_hash(claim.case, claim.target)}.json" if cache else None for claim in wanted]
    found = [_load(path) for path in paths]
    missing = [index for index, cubin in enumerate(found) if cubin is None]
    errors: list[str] = []
    # Spawned, since the compiler's threads do not survive a fork. Kernels cannot be pickled: workers import them.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = {
            pool.submit(_compile, wanted[index].module, wanted[index].index, wanted[index].target): index
            for index in missing
        }
        for done, job in enumerate(as_completed(jobs), 1):
            claim, path = wanted[jobs[job]], paths[jobs[job]]
            try:
                cubin = found[jobs[job]] = job.result()
                _save(path, cubin)
            except Exception as error:  # the compiler raises whatever it likes
                errors.append(f"{claim.case.key} sm_{claim.target}: {type(error).__name__}: {error}")
            if tell:
                tell(done, len(missing))
    _remove_old(cache)
    return sorted((cubin for cubin in found if cubin), key=_order), sorted(errors)


def faults(cubins: Iterable[Cubin], wanted: Iterable[Claim]) -> list[str]:
    """What is wrong with compiled code: a spill, more shared memory than there is, evidence that is not there."""
    claimed = {(claim.case.key, claim.target): claim.evidence for claim in wanted}
    wrong = []
    for cubin in cubins:
        name = f"{cubin.key} sm_{cubin.target}"
        if cubin.spill:
            wrong.append(f"{name}: spills {cubin.spill} bytes")
        if cubin.shared > MAX_SHARED:
            wrong.append(f"{name}: {cubin.shared} bytes of shared memory, more than {MAX_SHARED}")
        lost = claimed.get((cubin.key, cubin.target), frozenset()) - set(cubin.evidence)
        wrong += [f"{name}: no {evidence} in the code" for evidence in sorted(lost)]
    return wrong


def differences(table: Sequence[Cubin], cubins: Sequence[Cubin]) -> list[str]:
    """Where a stored table differs from what is compiled: rows that are stale, missing or superfluous."""
    stored, found = ({(row.key, row.target): row for row in rows} for rows in (table, cubins))
    wrong = [f"{key} sm_{target}: not in the table" for key, target in found.keys() - stored.keys()]
    wrong += [f"{key} sm_{target}: in the table, but no case" for key, target in stored.keys() - found.keys()]
    wrong += [f"stale: {stored[at]}, now {found[at]}" for at in stored.keys() & found.keys() if stored[at] != found[at]]
    if len(stored) < len(table):
        wrong.append("the table has rows twice")
    return sorted(wrong)


def write_table(path: Path, cubins: Iterable[Cubin]) -> None:
    """Write `cubins`, one a line, with the version of the compiler."""
    rows = ",\n".join(json.dumps(list(asdict(cubin).values())) for cubin in sorted(cubins, key=_order))
    head = f'"triton": {json.dumps(triton.__version__)},\n"columns": {json.dumps(COLUMNS)}'
    path.write_text(f'{{\n{head},\n"rows": [\n{rows}\n]\n}}\n', encoding="utf-8")


def read_table(path: Path) -> tuple[str, list[Cubin]]:
    """The version of the compiler, and the rows."""
    table = json.loads(path.read_text(encoding="utf-8"))
    return table["triton"], [_cubin(dict(zip(table["columns"], row, strict=True))) for row in table["rows"]]


def _compile(module: str, index: int, target: int) -> Cubin:
    """One job of a worker. The claim is made again from the file."""
    case, _ = list(import_module(module).cases(target))[index]
    return compile_case(case, target)


def _order(cubin: Cubin) -> tuple[str, str, int]:
    return cubin.kernel, cubin.key, cubin.target


def _cubin(row: dict[str, object]) -> Cubin:
    evidence = row.pop("evidence")
    assert isinstance(evidence, list)
    return Cubin(**row, evidence=tuple(evidence))  # type: ignore[arg-type]


def _load(path: Path | None) -> Cubin | None:
    if path is None:
        return None
    with suppress(OSError, ValueError, TypeError, KeyError):
        cubin = _cubin(json.loads(path.read_text(encoding="utf-8")))
        os.utime(path)
        return cubin
    return None


def _save(path: Path | None, cubin: Cubin) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.tmp")
        part.write_text(json.dumps(asdict(cubin)), encoding="utf-8")
        part.replace(path)


def _remove_old(cache: Path | None) -> None:
    oldest = time.time() - KEEP_SECONDS
    for path in cache.glob("*.*") if cache else ():
        with suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()

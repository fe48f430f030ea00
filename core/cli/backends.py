"""`isoinfer backends`: which backends are installed, what they can drive here, and why not."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from isoinfer.cli.exit_codes import DONE
from isoinfer.cli.options import JsonFlag
from isoinfer.cli.tables import print_table
from isoinfer.cli.terminal import print_json

if TYPE_CHECKING:
    from isoinfer.backends.registry_records import DeviceRow


def backends(
    json: JsonFlag = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Probe again instead of using earlier results.")] = False,
) -> int:
    """List the backends and their devices, with the reason where one cannot be used."""
    from isoinfer.backends.registry import Registry

    rows = Registry.load(refresh=refresh).devices()
    if json:
        print_json([asdict(row) for row in rows])
    else:
        titles = ("name", "device", "description", "score", "api", "package", "status")
        print_table(titles, [_cells(row) for row in rows])
    return DONE


def _cells(row: DeviceRow) -> tuple[str, ...]:
    status = row.status if row.reason is None else f"{row.status}: {row.reason}"
    score = "" if row.score is None else str(row.score)
    package = f"{row.distribution} {row.version}".strip()
    return row.backend, row.device or "", row.description, score, row.api, package, status

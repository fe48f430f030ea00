"""What serves an op on the simulated device: the host, by the CPU backend's providers where there are some.

Ops over weights or KV are refused: the simulated model has no weights, and runs as a whole.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from isoinfer.backends.cpu.native_library import load_native
from isoinfer.backends.cpu.probe import probe_host
from isoinfer.backends.cpu.providers import CPU_SHAPED, CpuProviders
from isoinfer.backends.ops import GATHER_ROWS, OpSpec, bind_reference
from isoinfer.backends.provider import Function, Provider


class SimProviders:
    """The providers of every op, in order: the CPU's own, and the op's reference behind them."""

    def __init__(self, bind: Any) -> None:
        self._cpu = CpuProviders(load_native(probe_host()), deterministic=True, use_onednn=False, bind=bind)

    def find(self, op: OpSpec) -> list[Provider]:
        """The providers of `op`."""
        if op.name in CPU_SHAPED:
            return [Provider(name="sim", refuse=_refuse, make=_never)]
        reference = Provider(name="reference", refuse=_accept, make=partial(bind_reference, op))
        return [reference] if op is GATHER_ROWS else [*self._cpu.find(op), reference]  # hidden rows are int64 here


def _refuse(static: Any) -> str:
    return "the simulated model runs as a whole (bind_model) and has no weights"


def _accept(static: Any) -> str:
    return ""


def _never(static: Any) -> Function:
    raise AssertionError("a provider that refuses is not asked to make anything")

"""The simulated device's options, `key=value` pairs, as frozen data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from isoinfer.backends.sim.faults import FaultPlan
from isoinfer.errors import BackendError

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """How the device behaves.

    `stream`: lazy = work runs when it is waited for; eager = at launch. `clock`: virtual or real. `host_us`:
    host time of a round, None = as it is. `step_ms`: time of a step, None = the chip's roofline (0 without a
    chip). `count`: chips that share the work. `bits`: width of operands. `layers`: times that KV is written and
    read. `graphs`: decode steps may be captured; a graph is the callable itself. `eos_every`: a token in so
    many is `eos_token`, 0 = none. `predictable`: a token in so many is new and all others follow from the two
    before them; 0 = all are new. `memory`: bytes of the device.
    """

    stream: str = "lazy"
    clock: str = "virtual"
    host_us: float | None = None
    step_ms: float | None = None
    count: int = 1
    bits: int = 16
    block_size: int = 16
    layers: int = 1
    eos_every: int = 0
    eos_token: int = 2
    predictable: int = 0
    graphs: bool = False
    host_lengths: bool = False
    overlap_pays: bool = True
    max_in_flight: int = 2
    memory: int | None = None
    faults: FaultPlan = field(default_factory=FaultPlan)


def parse_options(options: Mapping[str, str]) -> SimOptions:
    """Read the pairs. BackendError, with what there is, for an unknown name or a value that cannot be."""
    own: dict[str, Any] = {}
    faults: dict[str, Any] = {}
    for name, text in options.items():
        if name not in _READERS:
            raise BackendError(f"the sim backend has no option {name!r}; it has {', '.join(sorted(_READERS))}")
        try:
            value = _READERS[name](text)
        except ValueError as error:
            raise BackendError(f"sim option {name}={text}: {error}") from None
        (faults if name in _FAULTS else own)[name] = value
    return replace(SimOptions(**own), faults=FaultPlan(**faults))


def _one_of(*known: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise ValueError(f"write {' or '.join(known)}")
        return text

    return read


def _number(kind: type[Any], low: float, high: float = float("inf")) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise ValueError(f"it must be from {low} to {high}")
        return value

    return read


def _switch(text: str) -> bool:
    return _one_of("on", "off")(text) == "on"


def _block_size(text: str) -> int:
    if int(text) not in BLOCK_SIZES:
        raise ValueError(f"write one of {', '.join(map(str, BLOCK_SIZES))}")
    return int(text)


def _steps(text: str) -> frozenset[int]:
    return frozenset(int(step) for step in text.split("+"))


_COUNT, _AT_LEAST_0, _SHARE = _number(int, 1), _number(int, 0), _number(float, 0, 1)
_READERS: Mapping[str, Callable[[str], Any]] = {
    "stream": _one_of("lazy", "eager"),
    "clock": _one_of("virtual", "real"),
    "host_us": _number(float, 0),
    "step_ms": _number(float, 0),
    "count": _COUNT,
    "bits": _number(int, 4, 16),
    "block_size": _block_size,
    "layers": _COUNT,
    "eos_every": _AT_LEAST_0,
    "eos_token": _AT_LEAST_0,
    "predictable": _AT_LEAST_0,
    "graphs": _switch,
    "host_lengths": _switch,
    "overlap_pays": _switch,
    "max_in_flight": _COUNT,
    "memory": _COUNT,
    "seed": int,
    "fail_rate": _SHARE,
    "fail_steps": _steps,
    "lose_step": _AT_LEAST_0,
    "max_polls": _AT_LEAST_0,
    "early_rate": _SHARE,
}
_FAULTS = {f.name for f in fields(FaultPlan)}

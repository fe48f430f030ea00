"""What each Ascend generation can do, as one frozen record. Data only: imports nothing of torch.

A device's SoC number is mapped here once; everything else asks the record. Numbers are those of
torch_npu's `get_soc_version()`, sizes those of AscendNPU-IR's target description.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from isoinfer.errors import BackendError


@dataclass(frozen=True, slots=True, kw_only=True)
class Soc:
    """One generation, with the core counts of one device.

    `ub_bytes`: unified buffer of a vector core. `l1_bytes`, `l0c_bytes`: a cube core's buffer and
    accumulator. `double_buffer`: the compiler splits the unified buffer in two unless told otherwise.
    `target`: the compiler's name of a member. `graph_limit`: graphs of one model that a device's streams
    suffice for.
    """

    name: str
    description: str
    target: str
    cube_cores: int
    vector_cores: int
    ub_bytes: int
    l1_bytes: int
    l0c_bytes: int
    double_buffer: bool
    fp8: bool
    mx: bool
    graph_limit: int = 32


SOCS = {
    soc.name: soc
    for soc in (
        Soc(
            name="910B",
            description="Atlas A2",
            target="Ascend910B3",
            cube_cores=20,
            vector_cores=40,
            ub_bytes=192 << 10,
            l1_bytes=512 << 10,
            l0c_bytes=128 << 10,
            double_buffer=True,
            fp8=False,
            mx=False,
        ),
        Soc(
            name="910C",
            description="Atlas A3, one die",
            target="Ascend910B3",
            cube_cores=24,
            vector_cores=48,
            ub_bytes=192 << 10,
            l1_bytes=512 << 10,
            l0c_bytes=128 << 10,
            double_buffer=True,
            fp8=False,
            mx=False,
        ),
        Soc(
            name="950",
            description="Atlas A5",
            target="Ascend950PR_9589",
            cube_cores=32,
            vector_cores=64,
            ub_bytes=248 << 10,
            l1_bytes=512 << 10,
            l0c_bytes=256 << 10,
            double_buffer=False,
            fp8=True,
            mx=True,
        ),
    )
}
"""By generation. Core counts are those of the member that `target` names; a device reports its own."""

_CORES_910B = {220: (24, 48), 221: (24, 48), 222: (24, 48), 223: (20, 40), 224: (20, 40), 225: (20, 40)}
_CORES_910C = {250: (24, 48), 251: (24, 48), 252: (24, 48), 253: (24, 48), 254: (20, 40), 255: (20, 40), 256: (20, 40)}
_NUMBERS = {
    **{number: ("910B", cores) for number, cores in _CORES_910B.items()},
    **{number: ("910C", cores) for number, cores in _CORES_910C.items()},
    260: ("950", (32, 64)),
}
_OTHERS = {range(200, 206): "310P"}


def refusal(number: int, name: str) -> str | None:
    """Why the device with this SoC number and name is not served, or None."""
    if number in _NUMBERS:
        return None
    other = next((other for numbers, other in _OTHERS.items() if number in numbers), None)
    what = f"{name} is an Ascend {other}" if other else f"SoC number {number} ({name}) is not known"
    return f"{what}; this backend serves {', '.join(SOCS)}"


def soc_of(number: int, cores: tuple[int, int] | None = None) -> Soc:
    """The record of a SoC number that was not refused. `cores`: (cube, vector), where the device reports them."""
    name, usual = _NUMBERS[number]
    cube, vector = cores or usual
    return replace(SOCS[name], cube_cores=cube, vector_cores=vector)


def assumed(name: str) -> Soc:
    """The record called `name`. BackendError with the names that exist for any other."""
    if name in SOCS:
        return SOCS[name]
    raise BackendError(f"backend ascend knows no chip {name!r} to assume; it knows {', '.join(SOCS)}")

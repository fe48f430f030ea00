"""What each NVIDIA architecture can do, as one frozen record. Data only: imports nothing of torch or Triton.

Sources: NVIDIA's CUDA programming guide (compute capabilities) and the Blackwell and Hopper tuning guides.
"""

from __future__ import annotations

from dataclasses import dataclass

from isoinfer.errors import BackendError


@dataclass(frozen=True, slots=True, kw_only=True)
class SmCapability:
    """One architecture. `shared_bytes`: shared memory a block may use. `matrix`: its matrix instruction."""

    sm: int
    name: str
    shared_bytes: int
    matrix: str
    tma: bool = False
    fp8: bool = False
    fp4: bool = False

    @property
    def label(self) -> str:
        """`sm_90`."""
        return f"sm_{self.sm}"


CAPABILITIES = {
    record.sm: record
    for record in (
        SmCapability(sm=80, name="Ampere", shared_bytes=163 << 10, matrix="mma"),
        SmCapability(sm=86, name="Ampere", shared_bytes=99 << 10, matrix="mma"),
        SmCapability(sm=89, name="Ada", shared_bytes=99 << 10, matrix="mma", fp8=True),
        SmCapability(sm=90, name="Hopper", shared_bytes=227 << 10, matrix="wgmma", tma=True, fp8=True),
        SmCapability(sm=100, name="Blackwell", shared_bytes=227 << 10, matrix="tcgen05", tma=True, fp8=True, fp4=True),
        SmCapability(
            sm=103, name="Blackwell Ultra", shared_bytes=227 << 10, matrix="tcgen05", tma=True, fp8=True, fp4=True
        ),
        SmCapability(sm=120, name="Blackwell (RTX)", shared_bytes=99 << 10, matrix="mma", tma=True, fp8=True, fp4=True),
    )
}
OLDEST = 80


def refusal(major: int, minor: int) -> str | None:
    """Why a GPU of this compute capability is not served, or None."""
    if major * 10 + minor >= OLDEST:
        return None
    return f"compute capability {major}.{minor} is older than 8.0, the oldest that bfloat16 kernels run on"


def capability_of(major: int, minor: int) -> SmCapability:
    """The record of a GPU; of one that is newer than this table, that of the nearest older one of its family."""
    sm = major * 10 + minor
    family = [known for known in CAPABILITIES if known <= sm and known // 10 == major]
    older = family or [known for known in CAPABILITIES if known <= sm]
    assert older, f"compute capability {major}.{minor} was not refused"
    return CAPABILITIES[max(older)]


def assumed(name: str) -> SmCapability:
    """The record called `sm_100`. BackendError with the names that exist for any other."""
    for record in CAPABILITIES.values():
        if record.label == name:
            return record
    known = ", ".join(record.label for record in CAPABILITIES.values())
    raise BackendError(f"backend cuda knows no chip {name!r} to assume; it knows {known}")

"""Plain data that a backend plugin hands to the registry. Imports no torch: plugin modules must stay light."""

from __future__ import annotations

from dataclasses import dataclass, field

BACKEND_API = (0, 3)
"""Version of the seam. Minor n is raised by each change until the surface is complete (then (1, 0))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendDescriptor:
    """Who a backend is. Returned by `isoinfer_backend_descriptor`; must not touch a device."""

    name: str
    vendor: str
    api: tuple[int, int]
    distribution: str
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """One device a backend could drive, or the reason in words why it cannot."""

    id: str
    description: str
    score: int
    reason: str | None = None

    @property
    def available(self) -> bool:
        """Whether the device can be used now."""
        return self.reason is None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFailure:
    """A conformance case that is known to fail: counted, never hidden. Expires on an ISO date."""

    case: str
    url: str
    expires: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The conformance profiles that a backend claims on a device."""

    profiles: tuple[str, ...] = ()
    known_failures: tuple[KnownFailure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """What the user asks of a backend. `options` are `key=value` pairs that only that backend knows.

    `dtype` is "auto", "float32", "bfloat16" or "float16". `fallback` is what happens where a
    backend has no provider for an op: "fail", "composed" (the op's decomposition on the same
    device) or "reference" (through the host, counted). `assume` names a chip that is not there: such a
    backend only answers what it would do (`explain`); one that has nothing to assume refuses.
    """

    dtype: str = "auto"
    deterministic: bool = False
    fallback: str = "composed"
    threads: int | None = None
    assume: str | None = None
    options: dict[str, str] = field(default_factory=dict)

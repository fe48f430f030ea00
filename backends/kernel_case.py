"""A kernel together with everything that its compiled code depends on. Plain data: imports no compiler.

Providers prepare a case once, when an op is bound, and call what comes back with a grid and arguments.
Gates enumerate the same cases to interpret or to compile them, so that what is checked is what runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from isoinfer.errors import BackendError

POINTERS = {
    "bfloat16": "*bf16",
    "float16": "*fp16",
    "float32": "*fp32",
    "int32": "*i32",
    "int64": "*i64",
    "int8": "*i8",
    "uint8": "*u8",
}
"""The signature type of a pointer to each dtype."""

Launch = Callable[..., None]
"""`launch(grid, *args)`: `grid` is a tuple, `args` are in the order of the case's signature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """One kernel, specialised.

    `signature`: (argument, type) in order, without constants. Types are the compiler's: "*bf16" a pointer,
    "i32", "fp32"; a suffix ":16" promises that the value is a multiple of 16 (bytes for a pointer).
    `constants`: compile-time arguments by name. `options`: num_warps and the like.
    """

    kernel: Any
    signature: tuple[tuple[str, str], ...]
    constants: Mapping[str, int | float | bool | str | None]
    options: Mapping[str, int]

    @property
    def name(self) -> str:
        """The kernel function's name."""
        return str(self.kernel.__name__)

    @property
    def key(self) -> str:
        """Equal for equal cases, in every process: the name and a hash of the rest."""
        rest = json.dumps([self.signature, sorted(self.constants.items()), sorted(self.options.items())])
        return f"{self.name}-{hashlib.sha256(rest.encode()).hexdigest()[:12]}"


class Launcher(Protocol):
    """Turns cases into functions."""

    def prepare(self, case: KernelCase) -> Launch:
        """Build `case`. KernelError where it cannot be built."""


class NoLauncher:
    """The launcher of a chip that is only assumed: cases are prepared, as for an answer, and cannot run."""

    def prepare(self, case: KernelCase) -> Launch:
        """A launch that says why it cannot be one."""

        def launch(grid: tuple[int, ...], *args: Any) -> None:
            raise BackendError(f"this chip is only assumed, so {case.name} cannot run")

        return launch

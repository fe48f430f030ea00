"""The kernels of a package and their cases. A file is found by being there, so none can be left out.

Each file that defines a kernel, a jit function whose name ends in `_kernel`, offers
`cases(sm) -> Iterator[tuple[KernelCase, frozenset[str]]]`: its cases for a compute capability, and the evidence
(`cubin.INSTRUCTIONS`) that the compiled code of each must show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from triton.runtime.jit import JITFunction

from isoinfer.backends.kernel_case import KernelCase


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A case, the target it is for, and the evidence that it must show. `module` and `index` find it again."""

    module: str
    index: int
    case: KernelCase
    target: int
    evidence: frozenset[str]


def modules(package: ModuleType) -> Iterator[ModuleType]:
    """The modules of `package`, imported."""
    for info in iter_modules(package.__path__, f"{package.__name__}."):
        yield import_module(info.name)


def kernels(module: ModuleType) -> set[str]:
    """Names of the kernels that `module` defines."""
    return {
        name
        for name, value in vars(module).items()
        if isinstance(value, JITFunction) and value.__module__ == module.__name__ and name.endswith("_kernel")
    }


def claims(module: ModuleType, target: int) -> list[Claim]:
    """What `module` says of itself for sm_`target`; equal cases once. Empty for a module without `cases`."""
    found = list(module.cases(target)) if hasattr(module, "cases") else []
    first: dict[str, Claim] = {}
    for index, (case, evidence) in enumerate(found):
        if case.kernel.__module__ == module.__name__ and case.key not in first:
            claim = Claim(module=module.__name__, index=index, case=case, target=target, evidence=evidence)
            first[case.key] = claim
    return list(first.values())


def uncovered(package: ModuleType, target: int) -> list[str]:
    """The kernels of `package` that no case of their file is for."""
    missing = []
    for module in modules(package):
        covered = {claim.case.name for claim in claims(module, target)}
        missing += [f"{module.__name__}: no case of {name}" for name in sorted(kernels(module) - covered)]
    return missing

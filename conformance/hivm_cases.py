"""Every kernel case of `kernels_ascend` for a chip, and a hash of the source that each is compiled from."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from typing import Any

import triton.language as tl

import isoinfer.kernels_ascend
from isoinfer.backends.ascend.soc import SOCS, Soc
from isoinfer.backends.kernel_case import KernelCase

CHIPS = (SOCS["910B"], SOCS["950"])
"""One for each target: 910C has the target of 910B."""


def cases_for(soc: Soc) -> dict[str, KernelCase]:
    """The cases of all files of `kernels_ascend`, by key. A file that has none is one without kernels."""
    names = [info.name for info in pkgutil.iter_modules(isoinfer.kernels_ascend.__path__)]
    modules = [importlib.import_module(f"{isoinfer.kernels_ascend.__name__}.{name}") for name in names]
    return {case.key: case for module in modules if hasattr(module, "case") for case in _cases(module, soc)}


def _cases(module: Any, soc: Soc) -> Iterable[KernelCase]:
    if hasattr(module, "cases"):
        return list(module.cases())
    takes_soc = bool(inspect.signature(module.descriptions).parameters)
    return [module.case(desc) for desc in (module.descriptions(soc) if takes_soc else module.descriptions())]


def source_hash(case: KernelCase) -> str:
    """Of the kernel's text, of what it calls, and of the constants that they name."""
    digest, seen, functions = hashlib.sha256(), set(), [case.kernel.fn]
    while functions:
        function = functions.pop()
        if function in seen:
            continue
        seen.add(function)
        digest.update(inspect.getsource(function).encode())
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, tl.constexpr):
                digest.update(f"{name}={value.value}".encode())
            elif inspect.isfunction(inner := getattr(value, "fn", None)):
                functions.append(inner)
    return digest.hexdigest()[:12]

"""Builds kernel cases with Triton and launches them: compiled on a device, or by Triton's interpreter."""

from __future__ import annotations

from typing import Any

import torch
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import MockTensor
from triton.tools.tensor_descriptor import TensorDescriptor

from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launch
from isoinfer.backends.provider import KernelError

_POINTERS: dict[str, torch.dtype] = {kind: getattr(torch, name) for name, kind in POINTERS.items()}


class TritonLauncher:
    """Compiles at `prepare`, so that a kernel that cannot be built is known when the op is bound."""

    def prepare(self, case: KernelCase) -> Launch:
        """Compile `case` for the current device (nothing to do under the interpreter)."""
        kernel = case.kernel
        if not isinstance(kernel, InterpretedFunction):
            try:
                kernel.warmup(
                    *map(_stand_in, dict(case.signature).values()), grid=(1,), **case.constants, **case.options
                )
            except Exception as error:  # the compiler raises whatever it likes
                raise KernelError(f"{case.name}: {type(error).__name__}: {error}") from error
        keywords: dict[str, Any] = {**case.constants, **case.options}

        def launch(grid: tuple[int, ...], *args: Any) -> None:
            kernel[grid](*args, **keywords)

        return launch


def _stand_in(kind: str) -> Any:
    """An argument that makes Triton specialise as the signature says."""
    if kind.startswith("tensordesc<"):
        dtype, _, sizes = kind.removeprefix("tensordesc<").removesuffix("]>").partition("[")
        block = [int(size) for size in sizes.split(",")]
        return TensorDescriptor(MockTensor(_POINTERS[f"*{dtype}"]), block, [block[-1], 1], block)
    plain, _, divisor = kind.partition(":")
    if plain in _POINTERS:
        return MockTensor(_POINTERS[plain])
    if plain == "fp32":
        return 0.5
    return 16 if divisor else 17

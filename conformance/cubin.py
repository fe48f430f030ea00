"""Triton kernels compiled to cubins on a machine without a GPU, and what the machine code shows.

Triton's wheel carries the assembler and `cuobjdump`. Nothing is run: the evidence is "compiled". Start the process
without TRITON_INTERPRET, under which kernels cannot be compiled.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from isoinfer.backends.kernel_case import KernelCase

TARGETS = (90, 100, 103)
MAX_SHARED = 227 * 1024
"""Bytes of shared memory that a block can have on every target."""
INSTRUCTIONS = {"tcgen05": "tcgen05.mma", "tma": "cp.async.bulk.tensor", "wgmma": "wgmma.mma_async"}
"""What stands in the PTX, by the name of the evidence: matrix units of Blackwell and Hopper, bulk tensor copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cubin:
    """One case compiled for one target. `spill`: bytes of a thread's stack, which kernels use for nothing else.

    `shared`: bytes of shared memory. `evidence`: names of INSTRUCTIONS that are there, sorted.
    """

    kernel: str
    key: str
    target: int
    registers: int
    spill: int
    shared: int
    evidence: tuple[str, ...]


def compile_case(case: KernelCase, target: int) -> Cubin:
    """Compile `case` for sm_`target`. Raises whatever the compiler raises."""
    with tempfile.TemporaryDirectory() as folder, knobs.cache.scope():
        knobs.cache.dir = folder
        built = triton.compile(_source(case), target=GPUTarget("cuda", target, 32), options=dict(case.options))
        registers, stack = _resources(built.asm["cubin"], Path(folder) / "kernel.cubin")
    return Cubin(
        kernel=case.name,
        key=case.key,
        target=target,
        registers=registers,
        spill=stack,
        shared=int(built.metadata.shared),
        evidence=tuple(name for name, text in INSTRUCTIONS.items() if text in built.asm["ptx"]),
    )


def content_hash(case: KernelCase, target: int) -> str:
    """Equal only if the same Triton would compile the same code in the same way."""
    parts: list[Any] = [
        triton.__version__,
        case.kernel.cache_key,  # its source and that of the functions that it calls
        case.key,
        target,
        hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _source(case: KernelCase) -> ASTSource:
    names = list(case.kernel.arg_names)
    types = dict(case.signature)
    assert names == [*types, *(name for name in names if name in case.constants)], f"{case.name}: wrong signature"
    split = {name: kind.partition(":") for name, kind in types.items()}
    return ASTSource(
        fn=case.kernel,
        signature={name: split[name][0] if name in split else "constexpr" for name in names},
        constexprs={(names.index(name),): value for name, value in case.constants.items()},
        attrs={
            (names.index(name),): [["tt.divisibility", int(divisor)]]
            for name, (_, _, divisor) in split.items()
            if divisor
        },
    )


def _resources(cubin: bytes, path: Path) -> tuple[int, int]:
    """Registers and bytes of stack of a thread."""
    path.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    done = subprocess.run([tool, "--dump-resource-usage", path], capture_output=True, text=True, check=True)
    found = re.findall(r"REG:(\d+) STACK:(\d+)", done.stdout)
    assert len(found) == 1, f"one kernel expected: {done.stdout}"
    return int(found[0][0]), int(found[0][1])

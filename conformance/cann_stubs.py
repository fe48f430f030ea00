"""Stub CANN libraries: enough for torch_npu to be imported without CANN. A program: `cann_stubs.py FOLDER`.

Every symbol that torch_npu leaves undefined beyond what torch defines becomes a function that returns 0, and
one device is reported, so that device guards have something to switch to. Nothing is computed with it. Needs
gcc and nm; run it with the interpreter that has torch_npu. It imports neither torch nor torch_npu.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

EMPTY = ("hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel")
VENDOR = re.compile(r"(acl|rt[A-Z]|Msprof|Hccl)")
BODIES = {"aclrtGetDeviceCount": "int aclrtGetDeviceCount(unsigned *count) { *count = 1; return 0; }"}


def package(name: str) -> Path:
    """The folder of an installed package."""
    spec = find_spec(name)
    assert spec is not None, f"{name} is not installed"
    assert spec.submodule_search_locations, f"{name} is no package"
    return Path(spec.submodule_search_locations[0])


def symbols(library: Path, flag: str) -> set[str]:
    """Names in the dynamic table, without versions."""
    listed = subprocess.run(["nm", "-D", flag, str(library)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].partition("@")[0] for line in listed.splitlines() if line.strip()}


def missing_symbols() -> set[str]:
    """What torch_npu wants of CANN."""
    own = [*package("torch_npu").glob("_C.*.so"), *(package("torch_npu") / "lib").glob("*.so")]
    own = [library for library in own if "atb" not in library.name]  # loaded on demand, by its own operators
    defined = [*own, *(package("torch") / "lib").glob("*.so*")]
    wanted = set[str]().union(*(symbols(library, "--undefined-only") for library in own))
    known = set[str]().union(*(symbols(library, "--defined-only") for library in defined))
    return {name for name in wanted - known if VENDOR.match(name)}


def build(folder: Path) -> int:
    """Write the libraries. Returns the number of stubs."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(missing_symbols())
    bodies = [BODIES.get(name, f"int {name}(void) {{ return 0; }}") for name in names]
    _compile(folder, "ascendcl", "\n".join(bodies))
    for name in EMPTY:
        _compile(folder, name, "")
    return len(names)


def _compile(folder: Path, name: str, source: str) -> None:
    command = ["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(folder / f"lib{name}.so")]
    subprocess.run(command, input=source, text=True, check=True)


if __name__ == "__main__":
    print(f"{build(Path(sys.argv[1]))} stubs in {sys.argv[1]}")

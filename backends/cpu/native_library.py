"""Builds and loads the CPU kernels in native/: compiled once for this machine, kept in the user's cache.

Without a C++ compiler the backend still works on torch's own ops; `reason` then says what is missing.
The kernels have a thread team of their own (native/pool.h); torch then gets one thread, so that two
teams never compete for the cores.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import cast

from isoinfer.backends.cpu.probe import HostInfo
from isoinfer.backends.probe_cache import default_cache_dir

FLAGS = ("-O3", "-march=native", "-std=c++20", "-shared", "-fPIC", "-pthread", "-w")
BUILD_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLibrary:
    """The loaded kernels, or the reason why there are none."""

    library: ctypes.CDLL | None
    reason: str
    bfloat16: bool = False

    def function(self, name: str, *argtypes: type) -> Callable[..., None]:
        """The C function `iso_<name>` with its argument types set."""
        assert self.library is not None
        function = getattr(self.library, f"iso_{name}")
        function.argtypes, function.restype = argtypes, None
        return cast(Callable[..., None], function)

    def set_threads(self, threads: int) -> None:
        """Size of the kernels' team, the calling thread included. One team a process: the last call counts."""
        self.function("set_threads", ctypes.c_long)(threads)

    def keep_memory(self) -> None:
        """Let the allocator keep what is freed, for this process."""
        self.function("keep_memory")()


def load_native(host: HostInfo, cache: Path | None = None) -> NativeLibrary:
    """Compile where needed and load. Never raises for a missing or failing compiler."""
    compiler = next((path for name in ("g++", "c++", "clang++") if (path := shutil.which(name))), None)
    if platform.machine() not in ("x86_64", "AMD64"):
        return NativeLibrary(library=None, reason=f"the kernels are written for x86-64, this is {platform.machine()}")
    sources = _sources()
    folder = cache or default_cache_dir()
    if folder is None:
        return NativeLibrary(library=None, reason="there is no home folder to keep compiled kernels in (set HOME)")
    target = folder / f"cpu-kernels-{_key(sources, host)}.so"
    native = _open(target)
    if native.library is not None:
        return native
    if compiler is None:
        return NativeLibrary(library=None, reason="no C++ compiler found (install g++ for the fast kernels)")
    failure = _compile(compiler, sources, target)
    return NativeLibrary(library=None, reason=f"{compiler} failed: {failure}") if failure else _open(target)


def _open(target: Path) -> NativeLibrary:
    """Load a compiled library. One that is absent or damaged has a reason; the caller then compiles it again."""
    try:
        library = ctypes.CDLL(str(target))
        library.iso_features.restype = ctypes.c_long
        return NativeLibrary(library=library, reason="", bfloat16=bool(library.iso_features() & 1))
    except (OSError, AttributeError) as error:
        return NativeLibrary(library=None, reason=f"the compiled kernels do not load: {error}")


def _sources() -> dict[str, bytes]:
    folder = resources.files("isoinfer.backends.cpu") / "native"
    return {
        f.name: f.read_bytes() for f in sorted(folder.iterdir(), key=lambda f: f.name) if f.name[-2:] in ("pp", ".h")
    }


def _key(sources: dict[str, bytes], host: HostInfo) -> str:
    digest = hashlib.sha256(repr((FLAGS, host.model, host.features)).encode())
    for name, text in sources.items():
        digest.update(name.encode() + b"\0" + text + b"\0")
    return digest.hexdigest()[:20]


def _compile(compiler: str, sources: dict[str, bytes], target: Path) -> str:
    """Compile into `target`, atomically, so that processes starting together do not meet half a file."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            for name, text in sources.items():
                (Path(folder) / name).write_bytes(text)
            units = [name for name in sources if name.endswith(".cpp")]
            command = [compiler, *FLAGS, *units, "-o", "kernels.so"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
            if done.returncode:
                return done.stderr.strip().splitlines()[0][:200] if done.stderr.strip() else f"exit {done.returncode}"
            os.replace(Path(folder) / "kernels.so", target)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ""

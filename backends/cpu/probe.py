"""What the host offers: cores, instruction sets, memory. Reads the system's own tables; imports no torch."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

INTERESTING = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "bf16", "sve")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInfo:
    """The host. `features` are the instruction sets this backend cares about, `memory_*` in bytes."""

    model: str
    cores: int
    features: tuple[str, ...]
    memory_total: int
    memory_free: int

    @property
    def fast_bfloat16(self) -> bool:
        """Whether bfloat16 products are native, so that bfloat16 is the default type."""
        return "avx512_bf16" in self.features or "amx_bf16" in self.features

    def summary(self) -> str:
        """One line for tables."""
        return f"{self.model}, {self.cores} cores, {', '.join(self.features) or 'no vector sets known'}"


def probe_host() -> HostInfo:
    """Read the host's tables. Costs well under a millisecond."""
    cpuinfo = _read("/proc/cpuinfo")
    flags = set(_field(cpuinfo, "flags").split()) | set(_field(cpuinfo, "Features").split())
    total, free = _memory()
    return HostInfo(
        model=_field(cpuinfo, "model name") or platform.processor() or platform.machine(),
        cores=_cores(),
        features=tuple(name for name in INTERESTING if name in flags),
        memory_total=total,
        memory_free=free,
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> tuple[int, int]:
    """Total and available bytes, cut to the container's limit where there is one."""
    table = {line.split(":")[0]: line.split()[1] for line in _read("/proc/meminfo").splitlines() if ":" in line}
    if "MemTotal" in table:
        total = int(table["MemTotal"]) * 1024
        free = int(table.get("MemAvailable", table["MemTotal"])) * 1024
    else:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        free = total // 2
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit():
        used = _read("/sys/fs/cgroup/memory.current").strip()
        total = min(total, int(limit))
        free = min(free, max(0, int(limit) - int(used or 0)))
    return total, free


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _field(text: str, name: str) -> str:
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""

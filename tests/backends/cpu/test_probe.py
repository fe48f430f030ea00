"""Reading the host's tables, from given texts and from this machine."""

from __future__ import annotations

import pytest

from isoinfer.backends.cpu import probe

X86 = "processor\t: 0\nmodel name\t: Example CPU @ 2.0GHz\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16 x\n\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16 sve\nCPU part\t: 0xd4f\n"
MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\nHugePages_Total:       0\n"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The texts that the probe reads; absent ones are empty."""
    texts: dict[str, str] = {}
    monkeypatch.setattr(probe, "_read", lambda path: texts.get(path, ""))
    return texts


def test_an_x86_host(files: dict[str, str]) -> None:
    files["/proc/cpuinfo"] = X86 * 2
    files["/proc/meminfo"] = MEMINFO
    host = probe.probe_host()
    assert host.model == "Example CPU @ 2.0GHz"
    assert host.features == ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    assert host.fast_bfloat16
    assert (host.memory_total, host.memory_free) == (1000 * 1024, 600 * 1024)
    assert "avx512_bf16" in host.summary()


def test_an_arm_host_without_a_model_name(files: dict[str, str]) -> None:
    files["/proc/cpuinfo"] = ARM
    host = probe.probe_host()
    assert host.model
    assert host.features == ("asimd", "bf16", "sve")
    assert not host.fast_bfloat16


def test_a_feature_counts_only_as_a_whole_word(files: dict[str, str]) -> None:
    files["/proc/cpuinfo"] = "flags\t: avx512_bf16_not avx512f2\n"
    host = probe.probe_host()
    assert host.features == ()
    assert "no vector sets known" in host.summary()


@pytest.mark.parametrize(
    ("limit", "used", "total", "free"),
    [
        ("512000\n", "112000\n", 512000, 400000),
        ("512000", "", 512000, 512000),
        ("512000", "999999", 512000, 0),
        ("max\n", "112000", 1000 * 1024, 600 * 1024),
        ("99999999999", "0", 1000 * 1024, 600 * 1024),
        ("", "", 1000 * 1024, 600 * 1024),
    ],
)
def test_a_container_s_limit_counts(files: dict[str, str], limit: str, used: str, total: int, free: int) -> None:
    files["/proc/meminfo"] = MEMINFO
    files["/sys/fs/cgroup/memory.max"], files["/sys/fs/cgroup/memory.current"] = limit, used
    host = probe.probe_host()
    assert (host.memory_total, host.memory_free) == (total, free)


def test_an_old_kernel_has_no_available_memory_line(files: dict[str, str]) -> None:
    files["/proc/meminfo"] = "MemTotal:       1000 kB\n"
    assert probe.probe_host().memory_free == 1000 * 1024


def test_a_system_without_these_tables(files: dict[str, str]) -> None:
    host = probe.probe_host()
    assert host.memory_total > 1 << 20
    assert 0 < host.memory_free <= host.memory_total


def test_this_host() -> None:
    host = probe.probe_host()
    assert host.cores >= 1
    assert 0 < host.memory_free <= host.memory_total

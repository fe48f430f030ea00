"""Building the kernels: what goes wrong is a reason and never an exception, and a damaged file is built again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from isoinfer.backends.cpu import native_library
from isoinfer.backends.cpu.native_library import load_native
from isoinfer.backends.cpu.probe import HostInfo, probe_host

SMALL = b'extern "C" { long iso_features() { return 1; } void iso_set_threads(long) {} }'
"""A stand-in for the kernels that compiles in no time."""


@pytest.fixture
def host() -> HostInfo:
    return probe_host()


@pytest.fixture
def small_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    monkeypatch.setattr(native_library, "_sources", lambda: {"small.cpp": SMALL})


def fake_compiler(folder: Path, script: str) -> None:
    path = folder / "g++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_without_a_compiler_the_reason_says_what_to_install(
    host: HostInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    native = load_native(host, tmp_path / "cache")
    assert native.library is None
    assert native.reason == "no C++ compiler found (install g++ for the fast kernels)"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'boom: no such flag' >&2; exit 3", "boom: no such flag"),
        ("exit 3", "exit 3"),
        ("exit 0", "No such file"),  # it said that all went well and wrote nothing
    ],
)
def test_a_compiler_that_fails_is_a_reason(
    host: HostInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    fake_compiler(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    native = load_native(host, tmp_path / "cache")
    assert native.library is None
    assert "g++ failed: " in native.reason
    assert reason in native.reason
    assert list((tmp_path / "cache").iterdir()) == [], "nothing may be left behind"


def test_a_compiler_that_hangs_is_given_up(host: HostInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_compiler(tmp_path, "exec sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(native_library, "BUILD_TIMEOUT_S", 0.2)
    assert "timed out" in load_native(host, tmp_path / "cache").reason


def test_a_compiler_that_writes_rubbish_is_a_reason(
    host: HostInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(tmp_path, "echo rubbish > kernels.so")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert "do not load" in load_native(host, tmp_path / "cache").reason


def test_a_cache_that_cannot_be_written_is_a_reason(host: HostInfo, tmp_path: Path, small_sources: None) -> None:
    (tmp_path / "file").write_text("in the way")
    native = load_native(host, tmp_path / "file" / "cache")
    assert native.library is None
    assert "failed" in native.reason


def test_a_user_without_a_home_gets_a_reason(host: HostInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library, "default_cache_dir", lambda: None)
    assert "no home folder" in load_native(host).reason


def test_another_machine_gets_a_reason(host: HostInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert load_native(host, tmp_path).reason == "the kernels are written for x86-64, this is aarch64"


def test_it_is_compiled_once_and_then_found(
    host: HostInfo, tmp_path: Path, small_sources: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_native(host, tmp_path)
    assert (first.reason, first.bfloat16) == ("", True)
    (file,) = tmp_path.iterdir()
    built = file.stat().st_mtime_ns
    monkeypatch.setenv("PATH", "")
    assert load_native(host, tmp_path).library is not None
    assert file.stat().st_mtime_ns == built


def cached(folder: Path, host: HostInfo) -> Path:
    return folder / f"cpu-kernels-{native_library._key({'small.cpp': SMALL}, host)}.so"


@pytest.mark.parametrize("content", [b"", b"not a library"])
def test_a_damaged_file_in_the_cache_is_built_again(
    host: HostInfo, tmp_path: Path, small_sources: None, content: bytes
) -> None:
    cached(tmp_path, host).write_bytes(content)
    native = load_native(host, tmp_path)
    assert (native.reason, native.bfloat16) == ("", True)


def test_a_library_that_is_not_ours_is_a_reason_now_and_replaced_for_the_next_process(
    host: HostInfo, tmp_path: Path, small_sources: None
) -> None:
    compiler = ["g++", "-x", "c++", "-shared", "-fPIC", "-o", str(cached(tmp_path, host)), "-"]
    subprocess.run(compiler, input=b"int other;", check=True)
    assert "iso_features" in load_native(host, tmp_path).reason
    assert b"iso_features" in cached(tmp_path, host).read_bytes()


def test_a_damaged_file_without_a_compiler_is_a_reason(
    host: HostInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_library, "_sources", lambda: {"small.cpp": SMALL})
    cached(tmp_path, host).write_bytes(b"broken")
    monkeypatch.setenv("PATH", "")
    assert load_native(host, tmp_path).reason.startswith("no C++ compiler found")


def test_the_key_follows_sources_and_host(host: HostInfo) -> None:
    other = HostInfo(model=host.model, cores=host.cores, features=("sve",), memory_total=1, memory_free=1)
    keys = [
        native_library._key({"a.cpp": b"1"}, host),
        native_library._key({"a.cpp": b"2"}, host),
        native_library._key({"b.cpp": b"1"}, host),
        native_library._key({"a.cpp": b"1"}, other),
    ]
    assert len(set(keys)) == 4
    grown = HostInfo(model=host.model, cores=99, features=host.features, memory_total=9, memory_free=9)
    assert native_library._key({"a.cpp": b"1"}, grown) == keys[0]


def test_all_sources_are_in_the_package() -> None:
    sources = native_library._sources()
    assert {"linear.cpp", "attention.cpp", "misc.cpp", "sample.cpp", "vec.h"} <= sources.keys()


def test_the_real_kernels_build_here(host: HostInfo) -> None:
    native = load_native(host)
    if native.library is None:
        pytest.skip(f"no native kernels here: {native.reason}")
    assert native.bfloat16 == ("avx512_bf16" in host.features)
    with pytest.raises(AttributeError):
        native.function("no_such_kernel")

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from isoinfer.backends.plugin_source import PluginSource, find_sources
from isoinfer.backends.probe_process import probe_in_processes
from isoinfer.backends.probe_result import ProbeResult

LIMIT = 30.0


def _sources(*names: str) -> list[PluginSource]:
    return [next(source for source in find_sources() if source.name == name) for name in names]


def _probe(*names: str, limit: float = LIMIT) -> list[ProbeResult]:
    return probe_in_processes(_sources(*names), limit)


def test_crashes_are_told_apart_and_disturb_nobody(plugins: Any) -> None:
    plugins.good("exits", top="import os, sys; print('no licence', flush=True); os._exit(7)\n")
    plugins.good("faults", devices="[__import__('ctypes').string_at(0)]")
    plugins.good("quits", devices="__import__('sys').exit('bye')")
    plugins.good("fine")
    exits, faults, quits, fine = _probe("exits", "faults", "quits", "fine")
    assert exits.error is not None
    assert exits.error.endswith("exit status 7 and no answer; its last output was: no licence")
    assert faults.error == "it crashed when loaded or probed: signal SIGSEGV"
    assert quits.error == "its probe failed: SystemExit: bye"
    assert fine.error is None
    assert fine.devices[0].id == "0"


def test_noise_and_threads_that_never_end_do_no_harm(plugins: Any) -> None:
    noise = "import os, threading, time\nos.write(1, b'{ banner')\nprint('x' * 100000)\n"
    plugins.good("noisy", top=noise + "threading.Thread(target=time.sleep, args=(1000,)).start()\n")
    started = time.monotonic()
    (noisy,) = _probe("noisy")
    assert noisy.error is None
    assert time.monotonic() - started < LIMIT / 2


@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX")
def test_a_hanging_plugin_is_ended_with_its_children(plugins: Any, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    spawn = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(1000)\n"
    )
    plugins.good("hangs", top=spawn)
    started = time.monotonic()
    (hangs,) = _probe("hangs", limit=4.0)
    assert hangs.error == "it did not answer within 4 s (loaded and probed on its own)"
    assert time.monotonic() - started < 15
    assert _is_gone(int(pid_file.read_text()))


def test_the_current_folder_and_the_search_path(plugins: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = tmp_path / "cwd"
    trap.mkdir()
    (trap / "pluggy.py").write_text("raise RuntimeError('shadowed')")
    monkeypatch.chdir(trap)
    plugins.good("chip")
    (chip,) = _probe("chip")
    assert chip.error is None


def test_no_plugins_no_processes() -> None:
    assert probe_in_processes([], LIMIT) == []


def _is_gone(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat")
            # An orphan that nobody reaps (no init in a container) is a zombie: dead all the same.
            if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False

"""Running the probe program for several plugins at once, each with a time limit. Nothing a plugin does reaches us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from isoinfer.backends.plugin_source import PluginSource
from isoinfer.backends.probe_result import ProbeResult, from_json


def probe_in_processes(sources: Sequence[PluginSource], time_limit: float) -> list[ProbeResult]:
    """One result per source, in order. All run at once, so the whole takes about `time_limit` seconds at most."""
    with ExitStack() as stack:
        processes = [_ProbeProcess(source, stack) for source in sources]
        deadline = time.monotonic() + time_limit
        return [process.result(deadline, time_limit) for process in processes]


class _ProbeProcess:
    """One running probe. The stack ends it and removes its files, whatever happens."""

    def __init__(self, source: PluginSource, stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="isoinfer-probe-")))
        self._source = source
        self._result = folder / "result.json"
        self._output = folder / "output.txt"
        output = stack.enter_context(self._output.open("wb"))
        # -P: what lies in the current folder must not shadow modules of ours or of the plugin.
        command = [sys.executable, "-P", "-m", "isoinfer.backends.probe"]
        command += [f"{source.name} = {source.value}", source.distribution, str(self._result)]
        # Files, not pipes: a grandchild that lives on would hold a pipe open. A session of its own, to end all of it.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": _search_path()},
            start_new_session=True,
        )
        stack.callback(self._end)

    def result(self, deadline: float, time_limit: float) -> ProbeResult:
        """Wait until `deadline` (monotonic seconds) and read the answer, or say why there is none."""
        try:
            status = self._process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return ProbeResult(error=f"it did not answer within {time_limit:g} s (loaded and probed on its own)")
        try:
            return from_json(self._result.read_text(encoding="utf-8"), self._source)
        except (OSError, ValueError, TypeError, KeyError):
            return ProbeResult(error=f"it crashed when loaded or probed: {_ending(status)}{self._last_words()}")

    def _last_words(self) -> str:
        with suppress(OSError):
            lines = self._output.read_text(encoding="utf-8", errors="replace").split("\n")
            words = [line.strip() for line in lines if line.strip()]
            return f"; its last output was: {words[-1][:300]}" if words else ""
        return ""

    def _end(self) -> None:
        if self._process.poll() is not None:
            return
        if sys.platform != "win32":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()


def _search_path() -> str:
    # What is importable here, in this order, and the same there.
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path)


def _ending(status: int) -> str:
    if status >= 0:
        return f"exit status {status} and no answer"
    with suppress(ValueError):
        return f"signal {signal.Signals(-status).name}"
    return f"signal {-status}"

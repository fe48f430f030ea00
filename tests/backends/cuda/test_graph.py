"""CUDA graphs take no host parameters, and say so before anything is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from isoinfer.backends.cuda.graph import CudaGraph, GraphCapture


class Recorded:
    replays = 0

    def replay(self) -> None:
        self.replays += 1


def test_replay_runs_the_recording_and_refuses_what_it_could_only_ignore() -> None:
    recorded: Any = Recorded()
    graph = CudaGraph(recorded)
    graph.replay({})
    with pytest.raises(ValueError, match=r"takes no host parameters, got \['kv_len'\]"):
        graph.replay({"kv_len": [1]})
    assert recorded.replays == 1


def test_capture_with_host_parameters_is_refused() -> None:
    runtime: Any = None
    with pytest.raises(ValueError, match="takes none"):
        GraphCapture()(runtime, print, (), frozenset({"kv_len"}))

"""What a round leaves for the next: where each row's tokens stand, and the ring of host buffers."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.backends.cpu import plugin
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.engine.round_outputs import RoundOutputs


@pytest.fixture(scope="module")
def backend() -> Any:
    (device,) = plugin.isoinfer_backend_probe()
    options = {"native": "off", "stream": "thread"}
    return plugin.isoinfer_backend_create(device, BackendConfig(dtype="float32", threads=1, options=options))


def make(backend: Any, *, num_drafts: int = 0, depth: int = 2) -> RoundOutputs:
    return RoundOutputs(backend, max_rows=4, num_drafts=num_drafts, depth=depth)


def fill(outputs: RoundOutputs, value: int) -> None:
    """As if a round had written `value` and what follows it everywhere."""
    device = outputs.device
    for tensor in (device.last_token_G, device.token_GJ, device.accepted_G, device.draft_GK, device.found_G):
        tensor.copy_(torch.arange(value, value + tensor.numel(), dtype=torch.int32).view(tensor.shape))
    device.rejected_G.copy_(torch.arange(value + 50, value + 54, dtype=torch.int32))


def test_without_drafts_the_last_token_says_all(backend: Any, fake: SimpleNamespace) -> None:
    outputs, stream = make(backend), backend.stream()
    fill(outputs, 10)
    buffer = outputs.copy(fake.step_plan([0, 0, 0], [1, 1, 1], samples=[True, False, True]), stream, counts_first=False)
    stream.synchronize()
    rows = outputs.read(buffer, 2)
    assert rows.token_GJ.tolist() == [[10], [11]], "of the sampling rows, which stand first"
    assert rows.count_G.tolist() == [1, 1]
    assert (rows.draft_GK.shape, rows.num_drafts_G.tolist()) == ((2, 0), [0, 0])
    assert {getattr(rows, name).dtype.name for name in type(rows).__slots__} == {"int32"}


def test_with_drafts_every_row_has_a_count_and_what_may_come_next(backend: Any, fake: SimpleNamespace) -> None:
    outputs, stream = make(backend, num_drafts=2), backend.stream()
    fill(outputs, 10)
    outputs.device.accepted_G[:2] = torch.tensor([2, 0])
    buffer = outputs.copy(fake.step_plan([0, 0], [3, 3], drafts=[2, 2]), stream, counts_first=False)
    stream.synchronize()
    rows = outputs.read(buffer, 2)
    assert rows.token_GJ.tolist() == [[10, 11, 12], [13, 14, 15]]
    assert rows.count_G.tolist() == [3, 1]
    assert (rows.draft_GK.tolist(), rows.num_drafts_G.tolist()) == ([[10, 11], [12, 13]], [10, 11])


@pytest.mark.parametrize("depth", [1, 2])
def test_results_outlive_as_many_rounds_as_can_be_in_flight(backend: Any, fake: SimpleNamespace, depth: int) -> None:
    outputs, stream = make(backend, depth=depth), backend.stream()
    buffers = []
    for step_id in range(1, 8):
        fill(outputs, 10 * step_id)
        buffers.append(outputs.copy(fake.step_plan([0], [1], step_id=step_id), stream, counts_first=False))
        stream.synchronize()
        oldest = max(1, step_id - depth)
        assert outputs.read(buffers[oldest - 1], 1).token_GJ.tolist() == [[10 * oldest]]


def test_what_was_read_is_a_copy(backend: Any, fake: SimpleNamespace) -> None:
    for num_drafts in (0, 2):
        outputs, stream = make(backend, num_drafts=num_drafts, depth=1), backend.stream()
        kept = []
        for step_id in range(1, 4):
            fill(outputs, 10 * step_id)
            plan = fake.step_plan([0], [1], step_id=step_id)
            buffer = outputs.copy(plan, stream, counts_first=False)
            stream.synchronize()
            kept.append(outputs.read(buffer, 1))
        assert [rows.token_GJ[0, 0] for rows in kept] == [10, 20, 30]


def test_only_sampling_rows_have_a_place(backend: Any, fake: SimpleNamespace) -> None:
    outputs, stream = make(backend), backend.stream()
    outputs.copy(fake.step_plan([0] * 4, [1] * 4, samples=[True, False, True, True]), stream, counts_first=False)
    after = fake.step_plan([1] * 4, [1] * 4, remap=[3, -1, 0, 2], step_id=2)
    assert outputs.map_rows(after).tolist() == [2, -1, 0, 1]
    assert outputs.map_rows(after).dtype.name == "int32"


def test_rows_that_take_nothing_may_follow_any_step(backend: Any, fake: SimpleNamespace) -> None:
    outputs = make(backend)
    assert outputs.map_rows(fake.step_plan([0, 5], [1, 1], step_id=9)).tolist() == [-1, -1]


def test_a_row_goes_on_from_the_last_step_only(backend: Any, fake: SimpleNamespace) -> None:
    outputs, stream = make(backend), backend.stream()
    outputs.copy(fake.step_plan([0], [1], step_id=1), stream, counts_first=False)
    with pytest.raises(AssertionError, match="a step that is not the last one"):
        outputs.map_rows(fake.step_plan([1], [1], remap=[0], step_id=3))


def test_a_row_goes_on_from_one_that_sampled(backend: Any, fake: SimpleNamespace) -> None:
    outputs, stream = make(backend), backend.stream()
    outputs.copy(fake.step_plan([0, 0], [1, 1], samples=[True, False]), stream, counts_first=False)
    with pytest.raises(AssertionError, match="one that did not sample"):
        outputs.map_rows(fake.step_plan([1], [1], remap=[1], step_id=2))


class Blocking:
    """A backend whose copies to the host wait for `gate`, all but the first one."""

    def __init__(self, backend: Any) -> None:
        self._backend, self.gate, self._copies = backend, threading.Event(), 0

    def to_host(self, target: Any, source: Any, stream: Any) -> None:
        if self._copies:
            stream.launch(self.gate.wait)
        self._copies += 1
        self._backend.to_host(target, source, stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def test_the_counts_of_rejected_drafts_wait_for_nothing_else(backend: Any, fake: SimpleNamespace) -> None:
    blocking, stream = Blocking(backend), backend.stream()
    outputs = make(blocking, num_drafts=2)
    fill(outputs, 10)
    buffer = outputs.copy(fake.step_plan([0, 0], [3, 3], drafts=[2, 2]), stream, counts_first=True)
    assert outputs.rejected()[:2].tolist() == [60, 61]
    assert not np.array_equal(outputs.read(buffer, 1).token_GJ, [[10, 11, 12]]), "the tokens are still on their way"
    blocking.gate.set()
    stream.synchronize()
    assert outputs.read(buffer, 1).token_GJ.tolist() == [[10, 11, 12]]


def test_a_round_that_wrote_nothing_leaves_valid_tokens(backend: Any) -> None:
    device = make(backend, num_drafts=2).device
    tensors = [getattr(device, name) for name in type(device).__slots__]
    assert [bool(tensor.any()) for tensor in tensors] == [False] * 6

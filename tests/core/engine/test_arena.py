"""What reaches the device for a plan: positions, slots, lengths, rows to sample; and the ring of staging buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.backends.cpu import plugin
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.engine.arena import InputArena, Scratch
from isoinfer.engine.plan import StepPlan

ROWS = (  # start, query length, samples, blocks of 4 tokens
    (0, 6, False, [3, 7]),
    (9, 1, True, [2, 9, 4]),
    (3, 3, True, [5, 8]),
)


@pytest.fixture(scope="module")
def backend() -> Any:
    (device,) = plugin.isoinfer_backend_probe()
    options = {"native": "off", "stream": "thread"}
    return plugin.isoinfer_backend_create(device, BackendConfig(dtype="float32", threads=1, options=options))


def make_plan(rows: Any = ROWS) -> StepPlan:
    num_tokens = sum(row[1] for row in rows)
    none = np.zeros(0, dtype=np.int32)
    table = np.zeros((len(rows), max(len(row[3]) for row in rows)), dtype=np.int32)
    for index, row in enumerate(rows):
        table[index, : len(row[3])] = row[3]
    column = np.array([row[:2] for row in rows], dtype=np.int32)
    return StepPlan(
        step_id=1,
        request_R=np.arange(len(rows), dtype=np.int64),
        epoch_R=np.zeros(len(rows), dtype=np.int32),
        slot_R=np.arange(len(rows), dtype=np.int32),
        start_R=column[:, 0],
        query_len_R=column[:, 1],
        samples_R=np.array([row[2] for row in rows]),
        remap_R=np.full(len(rows), -1, dtype=np.int32),
        block_table_RB=table,
        token_ids_T=np.arange(100, 100 + num_tokens, dtype=np.int32),
        prompt_index_Q=none,
        prompt_target_Q=none,
        prompt_row_Q=none,
        prompt_position_Q=none,
        num_prompt_logprobs=0,
    )


def make_arena(backend: Any, depth: int = 1) -> InputArena:
    return InputArena(backend, max_tokens=12, max_rows=4, max_blocks=5, depth=depth)


def test_inputs_of_a_mixed_step(backend: Any) -> None:
    stream = backend.stream()
    inputs = make_arena(backend).load(make_plan(), 4, stream)
    stream.synchronize()
    assert inputs.token_ids_T.tolist() == list(range(100, 110))
    assert inputs.positions_T.tolist() == [0, 1, 2, 3, 4, 5, 9, 3, 4, 5]
    assert inputs.slots_T.tolist() == [12, 13, 14, 15, 28, 29, 17, 23, 32, 33]
    assert inputs.kv_len_R.tolist() == [6, 10, 6]
    assert inputs.logits_rows_G.tolist() == [6, 9]
    assert inputs.block_table_RB.tolist() == [[3, 7, 0], [2, 9, 4], [5, 8, 0]]
    assert {getattr(inputs, name).dtype for name in type(inputs).__slots__} == {torch.int32}


def test_a_step_of_the_largest_size_fits_and_the_buffer_keeps_its_address(backend: Any) -> None:
    stream, arena = backend.stream(), make_arena(backend)
    addresses = set()
    for _ in range(5):
        inputs = arena.load(make_plan(((0, 3, True, [1, 2, 3, 4, 5]),) * 4), 4, stream)
        addresses.add(inputs.token_ids_T.data_ptr())
        stream.synchronize()
        assert inputs.block_table_RB.tolist() == [[1, 2, 3, 4, 5]] * 4
        arena.settled()
    assert len(addresses) == 1


@pytest.mark.parametrize("depth", [1, 2])
def test_a_staging_buffer_in_use_is_never_written(backend: Any, depth: int) -> None:
    stream, arena = backend.stream(), make_arena(backend, depth)
    for _ in range(depth):
        arena.load(make_plan(), 4, stream)
    with pytest.raises(AssertionError, match="still in use"):
        arena.load(make_plan(), 4, stream)
    arena.settled()
    arena.load(make_plan(), 4, stream)


def test_after_steps_were_abandoned_all_buffers_are_free(backend: Any) -> None:
    stream, arena = backend.stream(), make_arena(backend, 2)
    for _ in range(2):
        arena.load(make_plan(), 4, stream)
        arena.load(make_plan(), 4, stream)
        arena.abandon()


def test_settling_more_than_was_loaded_is_a_programmer_error(backend: Any) -> None:
    with pytest.raises(AssertionError):
        make_arena(backend).settled()


def test_copies_of_steps_in_flight_come_from_their_own_buffers(backend: Any) -> None:
    """The second load writes its staging buffer before the first copy has run."""
    import threading

    stream, arena = backend.stream(), make_arena(backend, 2)
    gate, seen = threading.Event(), []
    stream.launch(gate.wait)
    for rows in (ROWS, ROWS[1:]):
        inputs = arena.load(make_plan(rows), 4, stream)
        stream.launch(lambda views=inputs: seen.append(views.positions_T.tolist()))
    gate.set()
    stream.synchronize()
    assert seen == [[0, 1, 2, 3, 4, 5, 9, 3, 4, 5], [9, 3, 4, 5]]


DECODES = ((5, 1, True, [3, 7]), (9, 1, True, [2, 9, 4]), (0, 1, True, [5]))
SCRATCH = Scratch(first_block=30, num_blocks=1, block_size=4)


def test_a_step_of_decodes_is_padded_with_rows_that_write_to_scratch(backend: Any) -> None:
    stream = backend.stream()
    inputs = make_arena(backend).load_decode(make_plan(DECODES), 4, SCRATCH, stream)
    stream.synchronize()
    assert inputs.token_ids_T.tolist() == [100, 101, 102, 0]
    assert inputs.positions_T.tolist() == [5, 9, 0, 0]
    assert inputs.slots_T.tolist() == [7 * 4 + 1, 4 * 4 + 1, 5 * 4, 30 * 4]
    assert inputs.kv_len_R.tolist() == [6, 10, 1, 1]
    assert inputs.block_table_RB.tolist() == [[3, 7, 0, 0, 0], [2, 9, 4, 0, 0], [5, 0, 0, 0, 0], [30, 0, 0, 0, 0]]
    assert {getattr(inputs, name).dtype for name in type(inputs).__slots__} == {torch.int32}


def test_padded_steps_of_one_size_lie_at_the_same_addresses(backend: Any) -> None:
    stream, arena = backend.stream(), make_arena(backend)
    addresses = set()
    for rows in (DECODES, DECODES[1:], DECODES[:1]):
        inputs = arena.load_decode(make_plan(rows), 4, SCRATCH, stream)
        stream.synchronize()
        addresses.add(tuple(getattr(inputs, name).data_ptr() for name in type(inputs).__slots__))
        assert len(set(inputs.slots_T.tolist())) == 4, "two rows write to one slot"
        arena.settled()
    assert len(addresses) == 1


def test_more_padding_than_scratch_is_a_programmer_error(backend: Any) -> None:
    arena = InputArena(backend, max_tokens=12, max_rows=12, max_blocks=5, depth=1)
    with pytest.raises(AssertionError):
        arena.load_decode(make_plan(DECODES), 8, SCRATCH, backend.stream())

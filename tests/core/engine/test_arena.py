"""What reaches the device for a plan: positions, slots, lengths, places to sample; and the ring of staging buffers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.backends.cpu import plugin
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.engine.arena import ArenaSizes, InputArena, Scratch, StepInputs
from isoinfer.engine.plan import StepPlan

TABLE = [[3, 7, 0], [2, 9, 4], [5, 8, 0]]
MakePlan = Callable[..., StepPlan]


@pytest.fixture(scope="module")
def backend() -> Any:
    (device,) = plugin.isoinfer_backend_probe()
    options = {"native": "off", "stream": "thread"}
    return plugin.isoinfer_backend_create(device, BackendConfig(dtype="float32", threads=1, options=options))


@pytest.fixture
def make_plan(fake: SimpleNamespace) -> MakePlan:
    """A step of three rows: a chunk of a prompt, a decode, the end of a prompt."""

    def make_plan_(**changes: Any) -> StepPlan:
        fields = {"start": [0, 9, 3], "count": [6, 1, 3], "samples": [False, True, True], "tables": [TABLE]}
        made: StepPlan = fake.step_plan(**{**fields, **changes})
        return made

    return make_plan_


def make_arena(backend: Any, **sizes: int) -> InputArena:
    return InputArena(backend, ArenaSizes(**{"max_tokens": 12, "max_rows": 4, "max_blocks": 5, **sizes}), 4)


def fresh(plan: StepPlan) -> Any:
    return np.full(plan.num_rows, -1, dtype=np.int32)


def tensors(inputs: StepInputs) -> list[torch.Tensor]:
    """All of them, by field."""
    fields = [getattr(inputs, name) for name in type(inputs).__slots__]
    return [tensor for field in fields for tensor in (field if isinstance(field, tuple) else (field,))]


def test_inputs_of_a_mixed_step(backend: Any, make_plan: MakePlan) -> None:
    stream = backend.stream()
    inputs = make_arena(backend).load(make_plan(), np.array([-1, 2, -1], np.int32), stream)
    stream.synchronize()
    assert inputs.token_ids_T.tolist() == list(range(100, 110))
    assert inputs.positions_T.tolist() == [0, 1, 2, 3, 4, 5, 9, 3, 4, 5]
    assert [slots_T.tolist() for slots_T in inputs.slots] == [[12, 13, 14, 15, 28, 29, 17, 23, 32, 33]]
    assert inputs.kv_len_R.tolist() == [6, 10, 6]
    assert inputs.query_start_X.tolist() == [0, 6, 7, 10]
    assert inputs.map_R.tolist() == [-1, 2, -1]
    assert inputs.places_P.tolist() == [6, 9]
    assert [table_RB.tolist() for table_RB in inputs.block_tables] == [TABLE]
    assert {tensor.dtype for tensor in tensors(inputs)} == {torch.int32}


def test_every_group_has_its_own_table_and_slots(backend: Any, make_plan: MakePlan) -> None:
    stream, other = backend.stream(), [[1, 2, 0], [0, 0, 6], [9, 3, 0]]
    plan = make_plan(tables=[TABLE, other])
    inputs = make_arena(backend, num_groups=2).load(plan, fresh(plan), stream)
    stream.synchronize()
    assert inputs.slots[0].tolist() == [12, 13, 14, 15, 28, 29, 17, 23, 32, 33]
    assert inputs.slots[1].tolist() == [4, 5, 6, 7, 8, 9, 25, 39, 12, 13]
    assert [table_RB.tolist() for table_RB in inputs.block_tables] == [TABLE, other]


def test_drafts_are_places_behind_the_token_they_follow(backend: Any, make_plan: MakePlan) -> None:
    stream = backend.stream()
    plan = make_plan(count=[6, 3, 1], start=[0, 7, 5], drafts=[0, 2, 0])
    inputs = make_arena(backend).load(plan, fresh(plan), stream)
    stream.synchronize()
    assert inputs.places_P.tolist() == [6, 7, 8, 9]
    assert inputs.positions_T.tolist()[6:] == [7, 8, 9, 5]


def test_a_step_of_the_largest_size_fits_and_the_buffer_keeps_its_address(backend: Any, fake: SimpleNamespace) -> None:
    stream, arena = backend.stream(), make_arena(backend, num_groups=2)
    wide = [[1, 2, 3, 4, 5]] * 4
    plan, addresses = fake.step_plan([0] * 4, [3] * 4, drafts=[2] * 4, tables=[wide] * 2), set()
    for _ in range(5):
        inputs = arena.load(plan, fresh(plan), stream)
        addresses.add(inputs.token_ids_T.data_ptr())
        stream.synchronize()
        assert inputs.places_P.tolist() == list(range(12))
        assert [table_RB.tolist() for table_RB in inputs.block_tables] == [wide] * 2
        arena.settled()
    assert len(addresses) == 1


@pytest.mark.parametrize("depth", [1, 2])
def test_a_staging_buffer_in_use_is_never_written(backend: Any, make_plan: MakePlan, depth: int) -> None:
    stream, arena, plan = backend.stream(), make_arena(backend, depth=depth), make_plan()
    for _ in range(depth):
        arena.load(plan, fresh(plan), stream)
    with pytest.raises(AssertionError, match="still in use"):
        arena.load(plan, fresh(plan), stream)
    arena.settled()
    arena.load(plan, fresh(plan), stream)


def test_after_steps_were_abandoned_all_buffers_are_free(backend: Any, make_plan: MakePlan) -> None:
    stream, arena, plan = backend.stream(), make_arena(backend, depth=2), make_plan()
    for _ in range(2):
        arena.load(plan, fresh(plan), stream)
        arena.load(plan, fresh(plan), stream)
        arena.abandon()


def test_settling_more_than_was_loaded_is_a_programmer_error(backend: Any) -> None:
    with pytest.raises(AssertionError):
        make_arena(backend).settled()


def test_copies_of_steps_in_flight_come_from_their_own_buffers(backend: Any, make_plan: MakePlan) -> None:
    """The second load writes its staging buffer before the first copy has run."""
    stream, arena = backend.stream(), make_arena(backend, depth=2)
    gate, seen = threading.Event(), []
    stream.launch(gate.wait)
    for plan in (make_plan(), make_plan(start=[9, 3, 1], count=[1, 3, 1])):
        inputs = arena.load(plan, fresh(plan), stream)
        stream.launch(lambda views=inputs: seen.append(views.positions_T.tolist()))
    gate.set()
    stream.synchronize()
    assert seen == [[0, 1, 2, 3, 4, 5, 9, 3, 4, 5], [9, 3, 4, 5, 1]]


SCRATCH = Scratch(first_blocks=(30,), num_blocks=1, block_size=4)


def decodes(fake: SimpleNamespace, rows: slice = slice(0, 3), **changes: Any) -> StepPlan:
    """A step of up to three rows that decode."""
    start, table = [5, 9, 0][rows], [[3, 7, 0], [2, 9, 4], [5, 0, 0]][rows]
    plan: StepPlan = fake.step_plan(start, [1] * len(start), **{"tables": [table], **changes})
    return plan


def test_a_step_of_decodes_is_padded_with_rows_that_write_to_scratch(backend: Any, fake: SimpleNamespace) -> None:
    stream, plan = backend.stream(), decodes(fake)
    inputs = make_arena(backend).load_decode(plan, np.array([1, -1, 0], np.int32), 4, SCRATCH, stream)
    stream.synchronize()
    assert inputs.token_ids_T.tolist() == [100, 101, 102, 0]
    assert inputs.positions_T.tolist() == [5, 9, 0, 0]
    assert inputs.slots[0].tolist() == [7 * 4 + 1, 4 * 4 + 1, 5 * 4, 30 * 4]
    assert inputs.kv_len_R.tolist() == [6, 10, 1, 1]
    assert inputs.map_R.tolist() == [1, -1, 0, -1], "padding goes on from nobody"
    assert inputs.query_start_X.tolist() == [0, 1, 2, 3, 4]
    assert inputs.places_P.tolist() == [0, 1, 2], "nobody samples a padding row"
    tables = [[3, 7, 0, 0, 0], [2, 9, 4, 0, 0], [5, 0, 0, 0, 0], [30, 0, 0, 0, 0]]
    assert inputs.block_tables[0].tolist() == tables
    assert {tensor.dtype for tensor in tensors(inputs)} == {torch.int32}


def test_padding_writes_to_the_scratch_of_every_group(backend: Any, fake: SimpleNamespace) -> None:
    stream, arena = backend.stream(), make_arena(backend, num_groups=2)
    plan = decodes(fake, tables=[TABLE, [[1, 6, 0], [0, 0, 2], [4, 0, 0]]])
    scratch = Scratch(first_blocks=(30, 11), num_blocks=1, block_size=4)
    inputs = arena.load_decode(plan, fresh(plan), 4, scratch, stream)
    stream.synchronize()
    assert [slots_T.tolist()[3] for slots_T in inputs.slots] == [30 * 4, 11 * 4]
    assert inputs.slots[1].tolist()[:3] == [6 * 4 + 1, 2 * 4 + 1, 4 * 4]
    assert [table_RB.tolist()[3] for table_RB in inputs.block_tables] == [[30, 0, 0, 0, 0], [11, 0, 0, 0, 0]]


def test_padded_steps_of_one_size_lie_at_the_same_addresses(backend: Any, fake: SimpleNamespace) -> None:
    stream, arena = backend.stream(), make_arena(backend)
    addresses = set()
    for rows in (slice(0, 3), slice(1, 3), slice(0, 1)):
        plan = decodes(fake, rows)
        inputs = arena.load_decode(plan, fresh(plan), 4, SCRATCH, stream)
        stream.synchronize()
        addresses.add(tuple(tensor.data_ptr() for tensor in tensors(inputs)))
        assert len(set(inputs.slots[0].tolist())) == 4, "two rows write to one slot"
        arena.settled()
    assert len(addresses) == 1


def test_more_padding_than_scratch_is_a_programmer_error(backend: Any, fake: SimpleNamespace) -> None:
    arena, plan = make_arena(backend, max_rows=12), decodes(fake)
    with pytest.raises(AssertionError):
        arena.load_decode(plan, fresh(plan), 8, SCRATCH, backend.stream())


def test_rings_get_slots_floors_and_what_no_later_token_of_its_row_replaces(backend: Any, make_plan: MakePlan) -> None:
    stream = backend.stream()
    plan = make_plan(floor=[0, 7, 2])
    inputs = make_arena(backend, rings=(4, 2), scratch_ring=9).load(plan, fresh(plan), stream)
    stream.synchronize()
    wide, narrow = inputs.rings
    assert wide.ring_T.tolist() == [9, 9, 0, 0, 0, 0, 1, 2, 2, 2]
    assert narrow.ring_T.tolist() == [9, 9, 9, 9, 0, 0, 1, 9, 2, 2]
    for ring in inputs.rings:
        assert (ring.ring_R.tolist(), ring.floor_R.tolist()) == ([0, 1, 2], [0, 7, 2])
        assert ring.query_len_R.tolist() == [6, 1, 3]
        assert (ring.kv_len_R is inputs.kv_len_R, ring.positions_T is inputs.positions_T) == (True, True)


def test_padding_rows_of_a_graph_have_the_scratch_ring(backend: Any, fake: SimpleNamespace) -> None:
    stream = backend.stream()
    plan = fake.step_plan([5, 8], [1, 1], tables=[[[3, 4, 5]] * 2], floor=[1, 2])
    arena = make_arena(backend, rings=(4,), scratch_ring=9)
    (ring,) = arena.load_decode(plan, fresh(plan), 4, SCRATCH, stream).rings
    stream.synchronize()
    assert (ring.ring_R.tolist(), ring.ring_T.tolist()) == ([0, 1, 9, 9], [0, 1, 9, 9])
    assert (ring.floor_R.tolist(), ring.kv_len_R.tolist()) == ([1, 2, 0, 0], [6, 9, 1, 1])
    assert ring.query_len_R.tolist() == [1] * 4


def test_tokens_below_the_write_floor_go_where_nobody_reads(backend: Any, make_plan: MakePlan) -> None:
    """Their blocks are shared and final; they are computed for the rings alone."""
    stream = backend.stream()
    plan = make_plan(write_floor=[4, 0, 9])
    inputs = make_arena(backend).load(plan, fresh(plan), stream)
    stream.synchronize()
    assert inputs.slots[0].tolist() == [0, 1, 2, 3, 28, 29, 17, 3, 0, 1]
    assert inputs.positions_T.tolist() == [0, 1, 2, 3, 4, 5, 9, 3, 4, 5]

"""Taking and leaving: queue, slot, KV, sampling settings and stop ids come and go together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isoinfer.engine.request import NO_SLOT
from isoinfer.engine.residents import Residents


@pytest.fixture
def core(fake: SimpleNamespace) -> Any:
    """A core whose parts are moved by hand: r0 and r1 wait."""
    made = fake.make_core(max_num_seqs=2)
    for number in range(2):
        made.scheduler.residents.queue(fake.make_request(number, [number, 5, 6, 7], stop_token_ids=(3,)))
    return made


def start(core: Any, name: str) -> int:
    residents: Residents = core.scheduler.residents
    slot = residents.slots.take()
    residents.start(residents.by_id[name], slot, None)
    return slot


def may_stop(core: Any) -> bool:
    return bool(core.scheduler.residents.stop_ids._count_V.any())


def test_a_request_that_starts_holds_everything(core: Any) -> None:
    residents, slot = core.scheduler.residents, start(core, "r1")
    request = residents.at(slot)
    assert (request.request_id, request.slot) == ("r1", slot)
    assert [waiting.request_id for waiting in residents.waiting.requests] == ["r0"]
    assert residents.running.slots().tolist() == [slot]
    assert may_stop(core)
    assert core.kv.extend(slot, 4)
    core.scheduler.check()


def test_a_preempted_one_holds_nothing_and_waits_with_its_tokens(core: Any) -> None:
    residents, slot = core.scheduler.residents, start(core, "r0")
    core.kv.extend(slot, 4)
    core.scheduler.table.append(*(_one(slot), _one([9]), _one(1)))
    residents.preempt(slot)
    request = residents.by_id["r0"]
    assert request.known_L.tolist() == [0, 5, 6, 7, 9]
    assert (request.slot, request.epoch, residents.num_preemptions) == (NO_SLOT, 1, 1)
    assert [waiting.request_id for waiting in residents.waiting.requests] == ["r0", "r1"], "it stands where it stood"
    assert (residents.slots.num_free, core.kv.usage, may_stop(core)) == (2, 0.0, False)
    core.scheduler.check()


def _one(value: Any) -> Any:
    import numpy as np

    return np.array([value], dtype=np.int32)


@pytest.mark.parametrize("is_running", [True, False])
def test_a_retired_one_is_gone_from_everywhere(core: Any, is_running: bool) -> None:
    residents = core.scheduler.residents
    if is_running:
        core.kv.extend(start(core, "r0"), 4)
    residents.retire(residents.by_id["r0"])
    assert list(residents.by_id) == ["r1"]
    assert [waiting.request_id for waiting in residents.waiting.requests] == ["r1"]
    assert (len(residents.running), residents.slots.num_free, core.kv.usage, may_stop(core)) == (0, 2, 0.0, False)
    core.scheduler.check()


def test_slot_and_kv_go_back_when_the_last_step_that_may_touch_them_has_settled(core: Any) -> None:
    residents, slot = core.scheduler.residents, start(core, "r0")
    core.kv.extend(slot, 4)
    core.scheduler.table.last_step_S[slot] = 2
    residents.settled(1)
    residents.retire(residents.by_id["r0"])
    for step_id, free in ((1, False), (2, True)):
        residents.settled(step_id)
        assert (residents.slots.num_free == 2) == free
        assert (core.kv.num_pending(0) == 0) == free
        assert (core.kv.usage == 0.0) == free
        residents.check()


def test_nobody_holds_an_empty_slot(core: Any) -> None:
    with pytest.raises(AssertionError):
        core.scheduler.residents.at(0)


def test_check_finds_a_lost_slot_and_a_request_in_no_queue(core: Any) -> None:
    residents = core.scheduler.residents
    residents.check()
    slot = residents.slots.take()
    with pytest.raises(AssertionError, match="slots are lost"):
        residents.check()
    residents.slots.give(slot)
    residents.waiting.remove(residents.by_id["r1"])
    with pytest.raises(AssertionError, match="in no queue, or in two"):
        residents.check()

"""The order of those that wait and of those that run, whatever came first and went."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoinfer.engine.policy import Fcfs, Policy, Priority
from isoinfer.engine.queues import RunningOrder, WaitingQueue


@pytest.mark.parametrize(("policy", "expected"), [(Fcfs(), [0, 1, 2, 3]), (Priority(), [1, 3, 0, 2])])
def test_waiting_requests_stand_in_the_order_of_the_policy(
    fake: SimpleNamespace, policy: Policy, expected: list[int]
) -> None:
    queue = WaitingQueue(policy)
    for number in (2, 0, 3, 1):
        queue.add(fake.make_request(number, priority=[5, -1, 5, 0][number]))
    assert [request.number for request in queue.requests] == expected
    assert len(queue) == 4


def test_a_preempted_request_returns_to_its_place(fake: SimpleNamespace) -> None:
    queue, requests = WaitingQueue(Fcfs()), [fake.make_request(number) for number in range(3)]
    for request in requests[1:]:
        queue.add(request)
    queue.add(requests[0])
    assert list(queue.requests) == requests


def test_removing_who_does_not_wait_is_a_programmer_error(fake: SimpleNamespace) -> None:
    queue, request = WaitingQueue(Fcfs()), fake.make_request(0)
    queue.add(request)
    with pytest.raises(AssertionError, match="r0"):
        queue.remove(fake.make_request(0))  # the same number, another request
    queue.remove(request)
    assert len(queue) == 0


def test_the_running_one_that_the_policy_ranks_last_gives_way_first(fake: SimpleNamespace) -> None:
    order = RunningOrder(Priority())
    for number, priority in enumerate([1, 0, 1, -2]):
        request = fake.make_request(number, priority=priority)
        request.slot = 10 + number
        order.add(request)
    assert order.slots().tolist() == [13, 11, 10, 12]
    assert order.last == ((1, 2), 12)
    assert order.slots().dtype.name == "int32"


def test_an_empty_order_has_no_slots() -> None:
    order = RunningOrder(Fcfs())
    assert (len(order), order.slots().tolist()) == (0, [])


@given(priorities=st.lists(st.integers(-2, 2), min_size=1, max_size=12), data=st.data())
def test_orders_are_those_of_a_sorted_list(fake: SimpleNamespace, priorities: list[int], data: st.DataObject) -> None:
    policy = Priority()
    requests = [fake.make_request(number, priority=priority) for number, priority in enumerate(priorities)]
    order, queue, inside = RunningOrder(policy), WaitingQueue(policy), []
    for request in data.draw(st.permutations(requests)):
        request.slot = 100 + request.number
        order.add(request)
        queue.add(request)
        inside.append(request)
        if data.draw(st.integers(0, 2)) == 0:
            gone = inside.pop(data.draw(st.integers(0, len(inside) - 1)))
            order.remove(gone)
            queue.remove(gone)
        inside.sort(key=policy.key)
        assert order.slots().tolist() == [request.slot for request in inside]
        assert list(queue.requests) == inside

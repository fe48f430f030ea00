from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from isoinfer.config import SCHEDULING_POLICIES
from isoinfer.engine.policy import POLICIES, Fcfs, LongestPrefix, Priority, make_policy


def requests(fake: SimpleNamespace, count: int, first: int = 0) -> list[Any]:
    return [fake.make_request(first + index) for index in range(count)]


def test_every_policy_of_the_settings_can_be_made() -> None:
    assert tuple(POLICIES) == SCHEDULING_POLICIES
    assert [type(make_policy(name)) for name in SCHEDULING_POLICIES] == [Fcfs, Priority, LongestPrefix, Fcfs]
    assert make_policy("lpm") is not make_policy("lpm"), "each engine counts for itself"


def test_first_come_is_by_number_whatever_the_priority(fake: SimpleNamespace) -> None:
    early, late = fake.make_request(3, priority=9), fake.make_request(4, priority=-9)
    assert Fcfs().key(early) < Fcfs().key(late)
    assert Fcfs().choose([early, late], cached=lambda request: request.number) == 0


def test_smaller_priorities_go_first_then_who_came_first(fake: SimpleNamespace) -> None:
    policy = Priority()
    ranked = [fake.make_request(number, priority=priority) for priority, number in [(-1, 7), (0, 2), (0, 5), (3, 1)]]
    mixed = [ranked[index] for index in (2, 0, 3, 1)]
    assert sorted(mixed, key=policy.key) == ranked
    assert policy.choose(ranked, cached=lambda request: request.number) == 0
    assert policy.displaces
    assert not Fcfs().displaces
    assert not LongestPrefix().displaces


def test_the_longest_prefix_goes_first_and_ties_by_arrival(fake: SimpleNamespace) -> None:
    waiting, cached = requests(fake, 4), {0: 0, 1: 8, 2: 16, 3: 16}
    assert LongestPrefix().choose(waiting, cached=lambda request: cached[request.number]) == 2
    assert LongestPrefix().choose(waiting, cached=lambda request: 5) == 0


def test_only_the_first_few_are_looked_up(fake: SimpleNamespace) -> None:
    policy, asked = LongestPrefix(), []

    def cached(request: Any) -> int:
        asked.append(request.number)
        return int(request.number)

    assert policy.choose(requests(fake, policy.LOOK_AHEAD + 5), cached) == policy.LOOK_AHEAD - 1
    assert asked == list(range(policy.LOOK_AHEAD))


def test_a_head_is_passed_over_only_so_often(fake: SimpleNamespace) -> None:
    """Others with a longer prefix come again and again; the head is served after PATIENCE of them."""
    policy, head = LongestPrefix(), fake.make_request(0)
    choices = [
        policy.choose([head, fake.make_request(1 + turn)], cached=lambda request: request.number)
        for turn in range(policy.PATIENCE + 1)
    ]
    assert choices == [1] * policy.PATIENCE + [0]


def test_a_new_head_starts_with_fresh_patience(fake: SimpleNamespace) -> None:
    policy = LongestPrefix()
    for turn in range(policy.PATIENCE):
        policy.choose([fake.make_request(0), fake.make_request(100 + turn)], cached=lambda request: request.number)
    assert policy.choose([fake.make_request(1), fake.make_request(200)], cached=lambda request: request.number) == 1


def test_a_head_that_is_chosen_loses_no_patience(fake: SimpleNamespace) -> None:
    policy, waiting = LongestPrefix(), requests(fake, 2)
    for _ in range(policy.PATIENCE + 1):
        assert policy.choose(waiting, cached=lambda request: 0) == 0
    assert policy.choose(waiting, cached=lambda request: request.number) == 1

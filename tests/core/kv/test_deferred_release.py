"""Items go back exactly once, and never before their step has settled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoinfer.kv.deferred_release import DeferredRelease


@given(
    st.lists(st.one_of(st.tuples(st.just("add"), st.integers(-1, 8)), st.tuples(st.just("settle"), st.integers(0, 2))))
)
def test_each_item_goes_back_once_when_its_fence_has_settled(actions: list[tuple[str, int]]) -> None:
    returned: list[int] = []
    release: DeferredRelease[int] = DeferredRelease(returned.append)
    fences: list[int] = []
    settled = -1
    for action, number in actions:
        if action == "add":
            release.add(len(fences), number)
            fences.append(number)
        else:
            settled += number
            release.settled(settled)
        due = [item for item, fence in enumerate(fences) if fence <= settled]
        assert sorted(returned) == due
        assert sorted(release.waiting()) == sorted(set(range(len(fences))) - set(due))
        assert len(release) == len(fences) - len(due)
        assert [item in release for item in range(len(fences))] == [item not in due for item in range(len(fences))]
        release.check()
    release.settled(max(settled, 8))
    assert sorted(returned) == list(range(len(fences)))
    assert len(release) == 0


def test_items_of_a_fence_keep_their_order_and_earlier_fences_go_first() -> None:
    returned: list[str] = []
    release: DeferredRelease[str] = DeferredRelease(returned.append)
    for item, fence in (("c", 4), ("a", 3), ("d", 4), ("b", 3)):
        release.add(item, fence)
    release.settled(4)
    assert returned == ["a", "b", "c", "d"]


def test_releasing_what_waits_already_is_a_programmer_error() -> None:
    release: DeferredRelease[int] = DeferredRelease(lambda item: None)
    release.add(5, 1)
    with pytest.raises(AssertionError, match="5 is released twice"):
        release.add(5, 2)


def test_steps_settle_in_order() -> None:
    release: DeferredRelease[int] = DeferredRelease(lambda item: None)
    release.settled(3)
    release.settled(3)
    with pytest.raises(AssertionError, match="step 2 settled after step 3"):
        release.settled(2)


def test_check_sees_what_is_lost_doubled_or_overdue() -> None:
    for damage, message in (
        (lambda waiting: waiting[1].append(7), "waits twice"),
        (lambda waiting: waiting.update({1: [8]}), "is lost"),
        (lambda waiting: waiting.update({0: waiting.pop(1)}), "0"),
    ):
        release: DeferredRelease[int] = DeferredRelease(lambda item: None)
        release.settled(0)
        release.add(7, 1)
        damage(release._waiting)
        with pytest.raises(AssertionError, match=message):
            release.check()

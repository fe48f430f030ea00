"""Faults come by number and seed, and again in the same places."""

from __future__ import annotations

import pytest

from isoinfer.backends.sim.faults import Fault, FaultPlan
from isoinfer.errors import DeviceLost, StepError


def test_named_steps_fail_and_no_others():
    plan = FaultPlan(fail_steps=frozenset({2, 5}), lose_step=7)
    kinds = [plan.of_step(number) for number in range(1, 9)]
    assert [number for number, kind in enumerate(kinds, 1) if kind is not Fault.NONE] == [2, 5, 7]
    assert kinds[6] is Fault.LOST


def test_a_rate_is_met_and_repeats_by_seed():
    plans = [FaultPlan(seed=seed, fail_rate=0.1) for seed in (1, 1, 2)]
    kinds = [[plan.of_step(number) for number in range(5000)] for plan in plans]
    assert kinds[0] == kinds[1] != kinds[2]
    assert 0.08 < 1 - kinds[0].count(Fault.NONE) / 5000 < 0.12
    assert min(kinds[0].count(Fault.RUBBISH), kinds[0].count(Fault.AFTER)) > 150


def test_no_faults_by_default():
    plan = FaultPlan()
    assert {plan.of_step(n) for n in range(1, 100)} == {Fault.NONE}
    assert {plan.polls(n) for n in range(100)} == {plan.items_run_early(n, 5) for n in range(100)} == {0}


def test_items_run_early_are_among_those_that_wait():
    plan = FaultPlan(early_rate=0.5, seed=3)
    counts = [plan.items_run_early(number, 4) for number in range(400)]
    assert set(counts) == {0, 1, 2, 3, 4}
    assert 120 < counts.count(0) < 280


def test_a_failed_step_is_that_steps_alone(make_driver, row):
    driver = make_driver(None, fail_steps="2+4")
    step = row(tokens=(1, 2, 3), start=0, tables=((4,),))
    answers = []
    for _ in range(5):
        try:
            answers += driver.answers(step)
        except StepError as error:
            answers.append(str(error).split(" fail ")[0])
    good = answers[0]
    assert answers == [good, "InjectedFault: step 2 was told to", good, "InjectedFault: step 4 was told to", good]


def test_a_failed_step_leaves_its_kv_or_rubbish_that_can_be_read(make_driver, row):
    """Rows of a failed request may be in the next step already: what they read is wrong, and no fault of theirs."""
    step = row(tokens=(1, 2, 3), start=0, tables=((4,),))
    behind = row(tokens=(5,), start=3, tables=((4,),))
    good = make_driver(None)
    good.hidden(step)
    (right,) = good.answers(behind)
    are_right = set()
    for seed in range(12):
        driver = make_driver(None, fail_steps="1", seed=seed)
        with pytest.raises(StepError):
            driver.hidden(step)
        are_right.add(driver.answers(behind) == [right])
    assert are_right == {False, True}


def test_a_lost_device_stays_lost(make_driver, row):
    driver = make_driver(None, lose_step=2)
    step = row(tokens=(1, 2, 3), start=0, tables=((4,),))
    driver.hidden(step)
    for _ in range(3):
        with pytest.raises(DeviceLost):
            driver.hidden(step)

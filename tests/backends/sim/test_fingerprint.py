"""Words: written ones are told from others, hold their token, and differ by token, position and context."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isoinfer.backends.sim.fingerprint import POISON, mix, mix_number, multipliers, tokens, words


def array(*values):
    return np.array(values, dtype=np.uint64)


@given(st.integers(0, 2**21 - 1), st.integers(0, 2**31), st.integers(0, 2**64 - 1))
def test_a_word_is_marked_written_and_holds_its_token(token, position, context):
    word = words(array(token), array(position), np.uint64(context))
    assert word[0] & np.uint64(1) == 1
    assert tokens(word)[0] == token
    assert POISON & np.uint64(1) == 0


def test_words_differ_by_token_position_and_context():
    grid = np.arange(50, dtype=np.uint64)
    token, position = (x.ravel() for x in np.meshgrid(grid, grid))
    by_both = words(token, position, np.uint64(0))
    assert len(set((by_both >> np.uint64(22)).tolist())) == 2500
    assert not (by_both == words(token, position, np.uint64(1))).any()


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5))
def test_both_mixes_are_the_same(values):
    assert mix(array(*values)).tolist() == [mix_number(value) for value in values]


def test_the_mix_is_the_published_one():
    assert mix_number(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF  # SplitMix64's first output from seed 0


def test_multipliers_are_odd_and_distinct():
    by = multipliers(5000)
    assert (by & np.uint64(1)).all()
    assert len(set(by.tolist())) == 5000
    assert (multipliers(10) == by[:10]).all()

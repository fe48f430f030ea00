"""Options of the simulated device: read, refused in words, and all of them named in the message."""

from __future__ import annotations

import pytest

from isoinfer.backends.sim.options import SimOptions, parse_options
from isoinfer.errors import BackendError


def test_nothing_given_is_the_default():
    assert parse_options({}) == SimOptions()


def test_pairs_are_read():
    options = parse_options(
        {"step_ms": "5", "host_us": "120.5", "host_lengths": "on", "fail_steps": "3+9", "seed": "-4", "block_size": "1"}
    )
    assert (options.step_ms, options.host_us, options.host_lengths, options.block_size) == (5.0, 120.5, True, 1)
    assert (options.faults.fail_steps, options.faults.seed) == (frozenset({3, 9}), -4)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("steps_ms", "5", "no option 'steps_ms'; it has bits, block_size, clock, count"),
        ("stream", "thread", "stream=thread: write lazy or eager"),
        ("clock", "", "clock=: write virtual or real"),
        ("host_lengths", "yes", "write on or off"),
        ("step_ms", "-1", "it must be from 0 to inf"),
        ("fail_rate", "1.5", "it must be from 0 to 1"),
        ("count", "two", "count=two: invalid literal"),
        ("block_size", "17", "write one of 1, 2, 4"),
    ],
)
def test_what_cannot_be_is_refused_in_words(name, text, message):
    with pytest.raises(BackendError) as caught:
        parse_options({name: text})
    assert message in str(caught.value)

"""Rooflines by hand, for steps whose rows are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from isoinfer.backends.sim.chips import CHIPS, Chip
from isoinfer.backends.sim.cost import FixedCost, RooflineCost, kv_moved, weights_read
from isoinfer.backends.sim.fingerprint import multipliers
from isoinfer.backends.sim.kv import SimAttentionPlan
from isoinfer.backends.sim.paged_reading import paged_reading

CHIP = Chip(description="", flops={16: 1e12, 8: 2e12}, bandwidth=1e9, memory=1, launch_s=1e-3)


def step(spec, lengths, queries):
    """Readings of a step."""
    plan = SimAttentionPlan(
        query_len_R=np.array(queries, dtype=np.int32),
        kv_len_upper_R=np.array(lengths, dtype=np.int32),
        kv_len_device_R=torch.tensor(lengths, dtype=torch.int32),
        block_table_RB=torch.ones((len(lengths), 64), dtype=torch.int32),
        maybe_kv_len_host_R=None,
    )
    slots_T, by = torch.arange(sum(queries), dtype=torch.int32), multipliers(256)
    return [paged_reading(plan, slots_T, window=group.window, block_size=4, multipliers=by) for group in spec.kv_specs]


@pytest.fixture
def spec(make_driver):
    """Two groups, 64 bytes a token each; a window of 6 in the second."""
    return make_driver(None, 6).spec


def test_a_fixed_step(spec):
    assert FixedCost(step_s=0.005).seconds(spec, step(spec, [9], [1])) == 0.005


def test_bytes_bound(spec):
    readings = step(spec, [9, 30], [1, 1])
    read = 64 * (9 + 30) + 64 * (6 + 6)
    assert kv_moved(spec, readings) == read + 2 * 128
    cost = RooflineCost(chip=CHIP, bits=16)
    assert cost.seconds(spec, readings) == pytest.approx((1e9 + read + 256) / 1e9 + 1e-3)


def test_a_window_is_read_once_for_a_chunk(spec):
    readings = step(spec, [30], [10])
    assert readings[1].num_words == 15  # ten queries and the five before them
    assert kv_moved(spec, readings) == 64 * 30 + 64 * 15 + 10 * 128


def test_work_bound(spec):
    readings = step(replace(spec, flops_per_token=10**12), [200], [100])
    heavy = replace(spec, flops_per_token=10**12)
    assert RooflineCost(chip=CHIP, bits=16).seconds(heavy, readings) == pytest.approx(100.001)
    assert RooflineCost(chip=CHIP, bits=8, count=4).seconds(heavy, readings) == pytest.approx(12.501)
    assert RooflineCost(chip=CHIP, bits=4).seconds(heavy, readings) == pytest.approx(50.001)


def test_experts_are_read_as_tokens_choose_them(spec):
    sparse = replace(spec, weight_bytes=1000 + 100, expert_bytes=1000, expert_share=0.1)
    assert weights_read(sparse, 1) == pytest.approx(1100)
    assert weights_read(sparse, 2) == pytest.approx(1000 + 190)
    assert weights_read(sparse, 1000) == pytest.approx(2000)
    assert weights_read(spec, 1000) == spec.weight_bytes


def test_a_model_may_say_what_a_query_reads(spec):
    readings = step(spec, [9, 30], [1, 1])
    assert kv_moved(replace(spec, maybe_kv_read=(1000, 10)), readings) == 2 * 128 + 2 * 1000 + 39 * 10


def test_every_chip_has_numbers_in_a_sensible_range():
    for name, chip in CHIPS.items():
        assert 16 in chip.flops, name
        assert 1e11 < chip.peak(16) <= chip.peak(8) <= chip.peak(4) < 1e17, name
        assert 1e10 < chip.bandwidth < 1e14, name
        assert 1e9 < chip.memory < 1e12, name

"""The attention plan: host lists and device tensors of the same step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from isoinfer.backends.ascend.plan import HOST_PARAMS, AttentionPlanner
from isoinfer.backends.interface import AttentionBatch
from isoinfer.backends.torch_device.runtime import HostRuntime


def batch(queries: list[int], lengths: list[int]) -> AttentionBatch:
    kv_len_R = np.array(lengths, dtype=np.int32)
    return AttentionBatch(
        query_len_R=np.array(queries, dtype=np.int32),
        kv_len_upper_R=kv_len_R,
        kv_len_device_R=torch.from_numpy(kv_len_R),
        block_table_RB=torch.zeros(len(queries), 2, dtype=torch.int32),
        block_size=128,
        maybe_kv_len_host_R=kv_len_R,
    )


@pytest.fixture
def planner() -> AttentionPlanner:
    runtime = HostRuntime()
    return AttentionPlanner(empty=runtime.empty, host_buffer=runtime.host_buffer)


def test_query_ends_are_cumulative_and_lengths_are_per_row(planner: AttentionPlanner) -> None:
    plan = planner.plan(batch([3, 1, 5], [3, 130, 9]), HostRuntime().stream())
    assert plan.host_params == dict(zip(HOST_PARAMS, ([3, 4, 9], [3, 130, 9]), strict=True))
    assert (plan.q_start_R.tolist(), plan.q_len_R.tolist()) == ([0, 3, 4], [3, 1, 5])
    assert (plan.q_start_R.dtype, plan.kv_len_R.tolist(), plan.num_rows) == (torch.int32, [3, 130, 9], 3)
    assert all(type(value) is int for values in plan.host_params.values() for value in values)


def test_absent_host_lengths_are_never_guessed(planner: AttentionPlanner) -> None:
    with pytest.raises(AssertionError, match="exact host KV lengths are absent"):
        planner.plan(replace(batch([1], [4]), maybe_kv_len_host_R=None), HostRuntime().stream())

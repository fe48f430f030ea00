"""Graphs over the emulated runtime: replay with other lengths, stale lengths shown, names refused, limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.backends.ascend.plan import AscendAttentionPlan
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.interface import AttentionBatch, KVSpec
from isoinfer.backends.ops import PAGED_ATTENTION, AttentionSpec
from isoinfer.conformance.emulated import emulated_ascend
from isoinfer.conformance.npu_emulation_rules import ConstraintError
from isoinfer.errors import BackendError

SPEC = AttentionSpec(
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    scale=0.125,
    block_size=128,
    window=None,
    softcap=None,
    has_sinks=False,
    dtype="bfloat16",
)


class Decode:
    """One layer's attention over random KV, with buffers at fixed places."""

    def __init__(self, graph_capacity: int = 64) -> None:
        self.backend = emulated_ascend("910B", BackendConfig(), graph_capacity=graph_capacity).backend
        spec = KVSpec(name="full", layers=(0,), num_kv_heads=2, head_dim=64, dtype="bfloat16")
        self.kv = self.backend.allocate_kv([spec], [4]).layer(0)
        gen = torch.Generator().manual_seed(0)
        for side in (self.kv.k_BSKD, self.kv.v_BSKD):
            side.copy_(torch.randn(side.shape, generator=gen))
        self.q_TND = torch.randn(2, 4, 64, generator=gen).bfloat16()
        self.out_TND = torch.empty_like(self.q_TND)
        self.attention = self.backend.bind(PAGED_ATTENTION, SPEC)

    def plan(self, lengths: list[int]) -> AscendAttentionPlan:
        kv_len_R = np.array(lengths, dtype=np.int32)
        batch = AttentionBatch(
            query_len_R=np.ones(2, dtype=np.int32),
            kv_len_upper_R=kv_len_R,
            kv_len_device_R=torch.from_numpy(kv_len_R),
            block_table_RB=torch.tensor([[1, 2], [3, 0]], dtype=torch.int32),
            block_size=128,
            maybe_kv_len_host_R=kv_len_R,
        )
        plan: Any = self.backend.plan_attention(batch, self.backend.stream())
        return plan

    def run(self, plan: AscendAttentionPlan) -> None:
        self.attention(self.q_TND * 2, self.kv, plan, None, self.out_TND)

    def eager(self, lengths: list[int]) -> torch.Tensor:
        self.run(self.plan(lengths))
        return self.out_TND.clone()

    def capture(self, lengths: list[int]) -> Any:
        plan = self.plan(lengths)
        return self.backend.capture(self.run, plan, host_params=[*plan.host_params])


def test_a_replay_with_other_lengths_and_inputs_is_what_an_eager_step_gives() -> None:
    decode = Decode()
    graph = decode.capture([5, 9])
    for lengths in ([6, 10], [200, 1], [5, 9]):
        decode.q_TND.mul_(-1.5)
        expected = decode.eager(lengths)
        decode.out_TND.zero_()
        graph.replay(decode.plan(lengths).host_params)
        assert torch.equal(decode.out_TND, expected)


def test_without_an_update_the_emulated_graph_is_stale() -> None:
    decode = Decode()
    graph = decode.capture([5, 9])
    stale, fresh = decode.eager([5, 9]), decode.eager([200, 90])
    graph._graph.update(cpu_update_input=[{"actual_seq_lengths_kv": [200, 90]}])  # the first form's name: ignored
    graph._graph.replay()
    assert torch.equal(decode.out_TND, stale)
    graph.replay(decode.plan([200, 90]).host_params)
    assert torch.equal(decode.out_TND, fresh)
    assert not torch.equal(stale, fresh)


@pytest.mark.parametrize("change", [{"actual_seq_lengths_kv": [1, 1]}, {"actual_seq_kvlen": None}])
def test_unknown_and_missing_names_are_refused(change: dict[str, Any]) -> None:
    decode = Decode()
    graph = decode.capture([5, 9])
    params = {name: value for name, value in {**decode.plan([6, 9]).host_params, **change}.items() if value}
    with pytest.raises(ValueError, match="graph replay takes exactly"):
        graph.replay(params)


def test_a_name_that_no_operator_takes_cannot_be_captured() -> None:
    decode = Decode()
    plan = decode.plan([5, 9])
    with pytest.raises(ValueError, match="takes no other"):
        decode.backend.capture(decode.run, plan, host_params=[*plan.host_params, "other"])
    with pytest.raises(ValueError, match="no host parameter was named"):
        decode.backend.capture(decode.run, plan)


def test_an_update_that_could_overtake_a_replay_raises_in_the_emulation() -> None:
    decode = Decode()
    graph = decode.capture([5, 9])
    graph.replay(decode.plan([6, 9]).host_params)
    with pytest.raises(ConstraintError, match="must wait for the replay before it"):
        graph._graph.update(cpu_update_input=[decode.plan([7, 9]).host_params])


def test_used_up_streams_and_the_limit_are_clear_errors() -> None:
    decode = Decode(graph_capacity=1)
    decode.capture([5, 9])
    with pytest.raises(BackendError, match="no streams left for graph 2; lower max_num_seqs"):
        decode.capture([5, 9])
    decode = Decode()
    for _ in range(decode.backend.capabilities.graph_limit):
        decode.capture([1, 1])
    with pytest.raises(BackendError, match="holds 32 graphs, and all are taken"):
        decode.capture([1, 1])


def test_torch_attention_refuses_to_be_captured() -> None:
    decode = Decode()
    decode.attention = decode.backend.bind(
        PAGED_ATTENTION, AttentionSpec(**{**{f: getattr(SPEC, f) for f in SPEC.__slots__}, "softcap": 5.0})
    )
    plan = decode.plan([5, 9])
    with pytest.raises(BackendError, match="bakes lengths into a graph"):
        decode.backend.capture(decode.run, plan, host_params=[*plan.host_params])

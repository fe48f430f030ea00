"""An attention step as Ascend's operators want it: lengths as host lists, and the same as device tensors.

The fused operator reads host lists, which a graph keeps from its capture: `host_params` has the names
under which a replay must give them anew. Our Triton kernel reads the device tensors.
Suffixes: R rows, B blocks of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from isoinfer.backends.interface import AttentionBatch, Stream
from isoinfer.backends.torch_device.runtime import copy_async

HOST_PARAMS = ("actual_seq_qlen", "actual_seq_kvlen")
"""As torch_npu's graph update names them for the second form of the operator. It ignores other names silently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendAttentionPlan:
    """`q_end_R`: cumulative ends of the rows in q, without the leading zero. `kv_len_host_R`: keys of each row.

    The tensors are int32 on the device. `q_len_host_R`: new tokens of each row.
    """

    q_end_R: tuple[int, ...]
    q_len_host_R: tuple[int, ...]
    kv_len_host_R: tuple[int, ...]
    q_start_R: torch.Tensor
    q_len_R: torch.Tensor
    kv_len_R: torch.Tensor
    table_RB: torch.Tensor

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return len(self.q_end_R)

    @property
    def host_params(self) -> dict[str, Any]:
        """What a replay must be given."""
        return dict(zip(HOST_PARAMS, ([*self.q_end_R], [*self.kv_len_host_R]), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionPlanner:
    """Makes plans. The two allocators are the runtime's: device memory, and host memory for async copies."""

    empty: Callable[[Sequence[int], torch.dtype], torch.Tensor]
    host_buffer: Callable[[Sequence[int], torch.dtype], torch.Tensor]

    def plan(self, batch: AttentionBatch, stream: Stream) -> AscendAttentionPlan:
        """Starts and lengths of the rows go to the device in one copy; exact host lengths are required."""
        q_len_R, end_R = batch.query_len_R, np.cumsum(batch.query_len_R, dtype=np.int32)
        staged_2R = self.host_buffer((2, len(q_len_R)), torch.int32)
        staged_2R.numpy()[:] = (end_R - q_len_R, q_len_R)
        device_2R = self.empty(staged_2R.shape, torch.int32)
        stream.launch(copy_async, device_2R, staged_2R)
        return AscendAttentionPlan(
            q_end_R=tuple(end_R.tolist()),
            q_len_host_R=tuple(q_len_R.tolist()),
            kv_len_host_R=tuple(batch.kv_len_host_R.tolist()),
            q_start_R=device_2R[0],
            q_len_R=device_2R[1],
            kv_len_R=batch.kv_len_device_R,
            table_RB=batch.block_table_RB,
        )

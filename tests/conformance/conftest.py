"""A backend whose every op is the reference: what the suite must pass, and a place to put mutants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.backends.interface import Capabilities, KVLayout, KVSpec, Support
from isoinfer.backends.ops import CanonicalKV, DenseWeight, OpSpec, bind_reference, quantize_int8, torch_dtype

BLOCK_SIZE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKV:
    """One layer of canonical KV."""

    kv: CanonicalKV

    def layer(self, index: int) -> CanonicalKV:
        assert index == 0
        return self.kv


class HostBackend:
    """The members of the seam that op cases use. `mutants` replace ops: `mutant(static)` returns the callable."""

    def __init__(self, mutants: dict[str, Callable[[Any], Callable[..., Any]]], support: dict[str, Any]) -> None:
        self._mutants = mutants
        self._support = support
        self.capabilities = Capabilities(dtypes=("float32", "bfloat16"), default_dtype="float32")

    def stream(self) -> Any:
        return SimpleNamespace(launch=lambda fn, *args: fn(*args), synchronize=lambda: None)

    def event(self) -> Any:
        return SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    host_buffer = empty

    def to_device(self, dst: torch.Tensor, src: torch.Tensor, stream: Any) -> None:
        dst.copy_(src)

    to_host = to_device

    def support(self, op: OpSpec, static: Any) -> Support:
        return Support(**({"status": "supported", "provider": f"host.{op.name}"} | self._support.get(op.name, {})))

    def bind(self, op: OpSpec, static: Any) -> Callable[..., Any]:
        return self._mutants.get(op.name, lambda static: bind_reference(op, static))(static)

    def prepare_weight(self, role: str, tensor: torch.Tensor, quant: str | None) -> Any:
        if quant == "int8":
            return quantize_int8(tensor)
        return tensor if role == "vector" else DenseWeight(tensor)

    def kv_layout(self, specs: Sequence[KVSpec]) -> KVLayout:
        return KVLayout(block_size=BLOCK_SIZE, bytes_per_block=(1,))

    def allocate_kv(self, specs: Sequence[KVSpec], num_blocks: Sequence[int]) -> HostKV:
        shape = (2, num_blocks[0], specs[0].ring or BLOCK_SIZE, specs[0].num_kv_heads, specs[0].head_dim)
        k, v = torch.empty(shape, dtype=torch_dtype(specs[0].dtype))
        return HostKV(kv=CanonicalKV(k, v))

    def export_blocks(self, kv: HostKV, layer: int, ids_B: Any) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.from_numpy(np.asarray(ids_B)).long()
        return kv.layer(layer).k_BSKD[ids], kv.layer(layer).v_BSKD[ids]

    def import_blocks(self, kv: HostKV, layer: int, ids_B: Any, k_BSKD: torch.Tensor, v_BSKD: torch.Tensor) -> None:
        ids = torch.from_numpy(np.asarray(ids_B)).long()
        kv.layer(layer).k_BSKD[ids] = k_BSKD
        kv.layer(layer).v_BSKD[ids] = v_BSKD

    def plan_attention(self, batch: Any, stream: Any) -> Any:
        return batch


@pytest.fixture
def make_backend() -> Callable[..., HostBackend]:
    """Makes a HostBackend with mutants by op name, and with changed support records by op name."""

    def make(mutants: dict[str, Any] | None = None, support: dict[str, Any] | None = None) -> HostBackend:
        return HostBackend(mutants or {}, support or {})

    return make

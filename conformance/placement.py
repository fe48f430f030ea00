"""One sample placed on a backend: prepared weights, allocated KV, a planned batch, device tensors.

Strides are kept: what is a view of a fused projection in the sample is one on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from isoinfer.backends.interface import AttentionBatch, Backend, KVCache, KVSpec, LayerKV, RingBatch, Stream
from isoinfer.backends.ops.kv import CanonicalKV
from isoinfer.backends.ops.linear import DenseWeight, Int4Weight, Int8Weight
from isoinfer.backends.ops.spec import OpSpec, Sample
from isoinfer.conformance.arguments import Tensors, argument_names, returned_tensors

VECTOR_ARGUMENTS = frozenset({"weight_H", "bias_N", "sinks_N", "b13_E2I", "b2_EH"})
"""Arguments that a model passes as prepared weights of role "vector"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Device arguments in the order of the signature, and the cache behind the `kv` argument with its size."""

    op: OpSpec
    args: tuple[Any, ...]
    maybe_kv: KVCache | None
    num_blocks: int


def place(backend: Backend, stream: Stream, op: OpSpec, sample: Sample) -> Placement:
    """Copy `sample` to the device, by the same doors that the engine uses."""
    kv = next((arg for arg in sample.args if isinstance(arg, CanonicalKV)), None)
    cache = None if kv is None else _place_kv(backend, kv, sample)
    names = argument_names(op)
    args = (_place(backend, stream, op, sample, name, arg, cache) for name, arg in zip(names, sample.args, strict=True))
    return Placement(op=op, args=tuple(args), maybe_kv=cache, num_blocks=0 if kv is None else len(kv.k_BSKD))


def _place(
    backend: Backend, stream: Stream, op: OpSpec, sample: Sample, name: str, arg: Any, cache: KVCache | None
) -> Any:
    if isinstance(arg, CanonicalKV):
        assert cache is not None, name
        return _layer(cache, arg)
    if isinstance(arg, AttentionBatch):
        length_R, table_RB = (_to_device(backend, stream, t) for t in (arg.kv_len_device_R, arg.block_table_RB))
        return backend.plan_attention(replace(arg, kv_len_device_R=length_R, block_table_RB=table_RB), stream)
    if isinstance(arg, RingBatch):
        return RingBatch(
            query_len_R=arg.query_len_R,
            kv_len_R=_to_device(backend, stream, arg.kv_len_R),
            ring_R=_to_device(backend, stream, arg.ring_R),
            floor_R=_to_device(backend, stream, arg.floor_R),
            positions_T=_to_device(backend, stream, arg.positions_T),
            ring_T=_to_device(backend, stream, arg.ring_T),
        )
    if isinstance(arg, Int8Weight | Int4Weight):
        return backend.prepare_weight(_role(sample, op), arg.dense(torch.float32), sample.static.quant)
    if isinstance(arg, DenseWeight):
        return backend.prepare_weight(_role(sample, op), arg.tensor_NK.clone(), None)
    if isinstance(arg, torch.Tensor) and name in VECTOR_ARGUMENTS:
        return backend.prepare_weight("vector", arg.clone(), None)
    return _to_device(backend, stream, arg) if isinstance(arg, torch.Tensor) else arg


def _role(sample: Sample, op: OpSpec) -> str:
    """The role that a model's weight rules give the weight of such an op."""
    if op.family in ("embedding", "moe"):
        return "experts" if op.family == "moe" else "embedding"
    return "linear" if sample.static.out_dtype == sample.static.dtype else "head"


def _place_kv(backend: Backend, kv: CanonicalKV, sample: Sample) -> KVCache:
    num_blocks, size, num_kv_heads, head_dim = kv.k_BSKD.shape
    spec = kv_spec(num_kv_heads, head_dim, sample.static.dtype)
    if any(isinstance(arg, RingBatch) for arg in sample.args):
        spec = replace(spec, window=1, ring=size)  # which window is the op's business
    cache = backend.allocate_kv([spec], [num_blocks])
    backend.import_blocks(cache, 0, np.arange(num_blocks, dtype=np.int32), kv.k_BSKD, kv.v_BSKD)
    return cache


def kv_spec(num_kv_heads: int, head_dim: int, dtype: str) -> KVSpec:
    """The KV of one layer, number 0."""
    return KVSpec(name="full", layers=(0,), num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype)


def _layer(cache: KVCache, kv: CanonicalKV) -> LayerKV:
    layer = cache.layer(0)
    assert layer.block_size == kv.block_size, f"kv_layout promised blocks of {kv.block_size}, got {layer.block_size}"
    return layer


def _to_device(backend: Backend, stream: Stream, tensor: torch.Tensor) -> torch.Tensor:
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.as_strided((extent if tensor.numel() else 0,), (1,))
    device = backend.empty(flat.shape, flat.dtype)
    backend.to_device(device, flat.clone(), stream)
    stream.synchronize()  # the copy that is being read dies here
    return device.as_strided(tensor.shape, tensor.stride())


def poison_allocator(backend: Backend, placement: Placement) -> None:
    """Free NaN-filled tensors in the shapes of the arguments: a fresh output that is not written may then be NaN."""
    for arg in placement.args:
        if isinstance(arg, torch.Tensor) and arg.is_floating_point():
            backend.empty(arg.shape, arg.dtype).fill_(torch.nan)


def snapshot(backend: Backend, stream: Stream, placement: Placement) -> Tensors:
    """Host copies of all arguments that are readable, by name; KV as `kv.k` and `kv.v`."""
    named: Tensors = {}
    for name, arg in zip(argument_names(placement.op), placement.args, strict=True):
        if isinstance(arg, torch.Tensor):
            named[name] = _to_host(backend, stream, arg)
        elif name == "kv" and placement.maybe_kv is not None:
            ids_B = np.arange(placement.num_blocks, dtype=np.int32)
            k_BSKD, v_BSKD = backend.export_blocks(placement.maybe_kv, 0, ids_B)
            named |= {"kv.k": k_BSKD.clone(), "kv.v": v_BSKD.clone()}
    return named


def _to_host(backend: Backend, stream: Stream, tensor: torch.Tensor) -> torch.Tensor:
    host = backend.host_buffer(tensor.shape, tensor.dtype)
    backend.to_host(host, tensor.contiguous(), stream)
    stream.synchronize()
    return host.clone()


def execute(backend: Backend, stream: Stream, fn: Callable[..., Any], placement: Placement) -> Tensors:
    """Run the bound op on the stream and bring what it returned to the host, by name."""
    returned: list[Any] = []

    def run() -> None:
        returned.append(fn(*placement.args))

    event = backend.event()
    stream.launch(run)
    event.record(stream)
    event.synchronize()
    named = returned_tensors(placement.op, returned[0])
    return {name: _to_host(backend, stream, tensor) for name, tensor in named.items()}

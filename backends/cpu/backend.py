"""The CPU reference backend: what a backend is, in the fewest parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from isoinfer.backends.cpu import kv as cpu_kv
from isoinfer.backends.cpu.linear_probe import onednn_is_faster
from isoinfer.backends.cpu.native_library import NativeLibrary, load_native
from isoinfer.backends.cpu.probe import probe_host
from isoinfer.backends.cpu.providers import CpuProviders
from isoinfer.backends.cpu.runtime import CpuEvent, CpuStream, InlineStream, RecordedGraph, ThreadStream
from isoinfer.backends.cpu.weights import Experts, pack_linear, reorder_onednn
from isoinfer.backends.descriptor import BackendConfig, DeviceInfo
from isoinfer.backends.interface import (
    AttentionBatch,
    Capabilities,
    Forward,
    Int32Array,
    KVCache,
    KVLayout,
    KVSpec,
    MemoryInfo,
    ModelSpec,
    Stream,
    Support,
)
from isoinfer.backends.ops import DenseWeight, OpSpec, dtype_name, quantize_int4, quantize_int8
from isoinfer.backends.provider import ProviderTable
from isoinfer.errors import BackendError

OPTIONS = {
    "stream": ("inline", "thread"),
    "native": ("on", "off"),
    "linear": ("probe", "native", "onednn"),
    "graphs": ("off", "on"),
}
DEFAULT_KV_BYTES = 4 << 30
GRAPH_LIMIT = 64
THREADS_PER_CORE = 4
"""More would only wait for each other. Tests ask for two on one core."""


class CpuBackend:
    """The host's cores. Options: `stream=inline|thread`, `native=on|off`, `linear=probe|native|onednn` and
    `graphs=off|on`. A graph here is the callable itself: it saves nothing, and lets the engine's use of graphs
    be tested.
    """

    name = "cpu"
    collective_backend = "gloo"

    def __init__(self, device: DeviceInfo, config: BackendConfig) -> None:
        self.info = device
        if config.assume is not None:
            raise BackendError(
                f"the cpu backend drives the machine it is on and has no chip {config.assume!r} to assume; "
                "leave --assume out"
            )
        self._host = probe_host()
        self._options = _resolve_options(config.options)
        self._deterministic = config.deterministic
        self._threads = self._resolve_threads(config.threads)
        self._native = self._load_native()
        self.capabilities = self._capabilities(config.dtype)
        self._use_onednn = self._choose_onednn(self.capabilities.default_dtype)
        self._providers = CpuProviders(
            self._native, deterministic=config.deterministic, use_onednn=self._use_onednn, bind=self.bind
        )
        self._table = ProviderTable(self.name, self._providers.find, fallback=config.fallback)
        self._torch_threads = self._threads if self._use_onednn else 1  # never two teams on the same cores
        torch.set_num_threads(self._torch_threads)

    def describe(self) -> list[str]:
        """What was chosen at start."""
        kernels = "native kernels" if self._native.library else f"torch's own ops ({self._native.reason})"
        linear = "oneDNN" if self._use_onednn or not self._native.library else "native"
        return [
            f"cpu: {self._host.summary()}",
            f"cpu: {self._threads} threads, {self._options['stream']} stream, {kernels}, {linear} linear"
            + (", deterministic" if self._deterministic else ""),
        ]

    # runtime

    def stream(self) -> CpuStream:
        """A stream of the kind that was configured."""
        return ThreadStream(self._torch_threads) if self._options["stream"] == "thread" else InlineStream()

    def event(self) -> CpuEvent:
        """An unrecorded event."""
        return CpuEvent()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory with undefined contents."""
        return torch.empty(tuple(shape), dtype=dtype)

    host_buffer = empty

    def to_device(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream) -> None:
        """A real copy, in stream order: `src` must stay unchanged until an event after it."""
        stream.launch(_copy, dst, src)

    to_host = to_device

    def memory(self) -> MemoryInfo:
        """The host's memory; KV gets at most 4 GiB and 40 % of what is free unless told otherwise."""
        host = probe_host()
        return MemoryInfo(
            total=host.memory_total,
            free=host.memory_free,
            kv_default=min(DEFAULT_KV_BYTES, host.memory_free * 2 // 5),
        )

    def capture(self, fn: Callable[..., None], *args: Any, host_params: Sequence[str] = ()) -> RecordedGraph:
        """A recorded callable; `host_params` are the keyword arguments that replay must give."""
        return RecordedGraph(fn, args, frozenset(host_params))

    # ops

    def support(self, op: OpSpec, static: Any) -> Support:
        """The first provider that accepts, else the fallback's answer with every refusal as the reason."""
        return self._table.support(op, static)

    def supports(self, op: OpSpec, static: Any) -> list[Support]:
        """Every provider's answer, in order, for `explain`."""
        return self._table.supports(op, static)

    def bind(self, op: OpSpec, static: Any) -> Callable[..., Any]:
        """The provider's own function. BackendError with the reasons where there is none."""
        return self._table.bind(op, static)

    def prepare_weight(self, role: str, tensor: torch.Tensor, quant: str | None) -> Any:
        """Pack a checkpoint tensor for the provider that will use it. Vectors stay tensors."""
        if role == "vector":
            return tensor
        if role == "embedding":
            return DenseWeight(tensor)
        if role == "experts":
            return Experts(linears=tuple(self.prepare_weight("linear", expert, None) for expert in tensor))
        assert role in ("linear", "head", "router"), role
        dtype = dtype_name(tensor.dtype) if quant is None else self.capabilities.default_dtype
        widened = role != "linear" and dtype != "float32"
        if not self._providers.linear_refusal(tensor.shape[1], dtype, quant, widened):
            return pack_linear(tensor, quant)
        if quant is not None:
            return quantize_int8(tensor) if quant == "int8" else quantize_int4(tensor)
        keep = widened or not torch._C._has_mkldnn
        return DenseWeight(tensor) if keep else reorder_onednn(tensor)

    # kv

    def kv_layout(self, specs: Sequence[KVSpec]) -> KVLayout:
        """Blocks of 16 tokens; with graphs, one more for their padding rows."""
        return cpu_kv.layout(specs, num_scratch_blocks=1 if self.capabilities.graph_limit else 0)

    def allocate_kv(self, specs: Sequence[KVSpec], num_blocks: Sequence[int]) -> cpu_kv.CpuKVCache:
        """Room for so many blocks of each group, contents undefined."""
        return cpu_kv.allocate(specs, num_blocks)

    def copy_blocks(self, kv: KVCache, group: int, src_B: Int32Array, dst_B: Int32Array, stream: Stream) -> None:
        """Copy blocks within every layer of a group, in stream order."""
        stream.launch(cpu_kv.copy_blocks, cpu_kv.own(kv), group, src_B, dst_B)

    def export_blocks(self, kv: KVCache, layer: int, ids_B: Int32Array) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V as `[B, S, K, D]`."""
        ids = torch.from_numpy(ids_B).long()
        return cpu_kv.read_blocks(cpu_kv.own(kv).layer(layer), ids)

    def import_blocks(
        self, kv: KVCache, layer: int, ids_B: Int32Array, k_BSKD: torch.Tensor, v_BSKD: torch.Tensor
    ) -> None:
        """Store K and V given as `[B, S, K, D]`."""
        cpu_kv.write_blocks(cpu_kv.own(kv).layer(layer), torch.from_numpy(ids_B).long(), k_BSKD, v_BSKD)

    def discard_blocks(self, kv: KVCache, group: int, ids_B: Int32Array) -> None:
        """Nothing to do: contents of free blocks are never read."""

    def plan_attention(self, batch: AttentionBatch, stream: Stream) -> cpu_kv.CpuAttentionPlan:
        """Pointers for the kernels."""
        return cpu_kv.plan(batch)

    def bind_model(self, spec: ModelSpec) -> Forward | None:
        """The CPU runs op by op."""
        return None

    # choices made once

    def _resolve_threads(self, asked: int | None) -> int:
        if asked is not None and asked < 1:
            raise BackendError(f"threads must be at least 1, got {asked}")
        if asked is not None and asked > THREADS_PER_CORE * self._host.cores:
            raise BackendError(
                f"{asked} threads on {self._host.cores} cores would only wait for each other; ask for fewer"
            )
        if asked is not None:
            return asked
        spare = 1 if self._options["stream"] == "thread" else 0
        return max(1, self._host.cores - spare)

    def _load_native(self) -> NativeLibrary:
        if self._options["native"] == "off":
            return NativeLibrary(library=None, reason="switched off by native=off")
        native = load_native(self._host)
        if native.library is not None:
            native.set_threads(self._threads)
            native.keep_memory()
        return native

    def _capabilities(self, dtype: str) -> Capabilities:
        dtypes = tuple(cpu_kv.TORCH_DTYPES)
        default = "bfloat16" if self._host.fast_bfloat16 else "float32"
        if dtype != "auto" and dtype not in dtypes:
            raise BackendError(
                f"the cpu backend computes in {' or '.join(dtypes)}, not {dtype}; use one of them or auto"
            )
        return Capabilities(
            dtypes=dtypes,
            default_dtype=default if dtype == "auto" else dtype,
            quantizations=("int8", "int4"),
            kernel_block_sizes=(cpu_kv.BLOCK_SIZE,),
            max_in_flight=2,
            graph_limit=GRAPH_LIMIT if self._options["graphs"] == "on" else 0,
            bitwise_deterministic=self._deterministic,
            rings=True,
        )

    def _choose_onednn(self, dtype: str) -> bool:
        if self._native.library is None:
            return True
        if self._options["linear"] != "probe":
            return self._options["linear"] == "onednn"
        if self._deterministic or (dtype == "bfloat16" and not self._native.bfloat16):
            return dtype == "bfloat16" and not self._native.bfloat16
        torch.set_num_threads(self._threads)
        return onednn_is_faster(self._native, dtype)


def _copy(dst: torch.Tensor, src: torch.Tensor) -> None:
    dst.copy_(src)


def _resolve_options(options: dict[str, str]) -> dict[str, str]:
    resolved = {name: values[0] for name, values in OPTIONS.items()}
    for name, value in options.items():
        if value not in OPTIONS.get(name, ()):
            known = "; ".join(f"{key}={'|'.join(values)}" for key, values in OPTIONS.items())
            raise BackendError(f"the cpu backend has no option {name}={value}; it has {known}")
        resolved[name] = value
    return resolved

"""The simulated backend: a device whose tokens are a hash of the true history and whose time is a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from isoinfer.backends.cpu.runtime import RecordedGraph
from isoinfer.backends.descriptor import BackendConfig, DeviceInfo
from isoinfer.backends.interface import (
    AttentionBatch,
    Capabilities,
    Event,
    Forward,
    Graph,
    Int32Array,
    KVCache,
    KVLayout,
    KVSpec,
    MemoryInfo,
    ModelSpec,
    Stream,
    Support,
)
from isoinfer.backends.ops import OpSpec
from isoinfer.backends.provider import ProviderTable
from isoinfer.backends.sim import kv as sim_kv
from isoinfer.backends.sim.chips import CHIPS, Chip
from isoinfer.backends.sim.cost import Cost, FixedCost, RooflineCost
from isoinfer.backends.sim.device import SimDevice
from isoinfer.backends.sim.model import FingerprintForward
from isoinfer.backends.sim.options import SimOptions, parse_options
from isoinfer.backends.sim.providers import SimProviders
from isoinfer.backends.sim.stream import SimEvent, SimStream
from isoinfer.backends.simulated import SimulatedTimes
from isoinfer.errors import BackendError

PLAIN_MEMORY = 4 << 30
DTYPES = ("bfloat16", "float16", "float32")
"""Nothing is computed in them: they say how large the model's weights and KV would be."""
GRAPH_LIMIT = 64
KV_SHARE = 0.9
"""Of the memory that weights leave, what KV may take."""
GARBAGE = {torch.int32: 0x7B7B7B7B, torch.int64: 0x7B7B7B7B7B7B7B7B}


class SimBackend:
    """See `options.py` for what may be chosen. Everything it says of time is simulated."""

    name = "sim"
    collective_backend = "gloo"

    def __init__(self, device: DeviceInfo, config: BackendConfig) -> None:
        self.info = device
        _check(config)
        self._options = parse_options(config.options)
        self._chip = CHIPS.get(device.id)
        self._device = SimDevice(self._options, _cost(self._options, self._chip))
        self.capabilities = Capabilities(
            dtypes=DTYPES,
            default_dtype=DTYPES[0] if config.dtype == "auto" else config.dtype,
            kernel_block_sizes=(self._options.block_size,),
            host_lengths=self._options.host_lengths,
            max_in_flight=self._options.max_in_flight,
            overlap_pays=self._options.overlap_pays,
            graph_limit=GRAPH_LIMIT if self._options.graphs else 0,
            bitwise_deterministic=True,
            rings=True,
        )
        self._providers = SimProviders(self.bind)
        self._table = ProviderTable(self.name, self._providers.find, fallback=config.fallback)

    def describe(self) -> list[str]:
        """What was chosen at start."""
        options = self._options
        pace = f"{options.step_ms or 0:g} ms a step"
        if self._chip is not None and options.step_ms is None:
            pace = f"roofline of {options.count} x {self._chip.description}, {options.bits}-bit operands"
        return [
            f"sim: SIMULATED device, no real computation and no real times: {pace}",
            f"sim: {options.stream} stream, {options.clock} clock, tokens by a hash of the history",
        ]

    def now(self) -> float:
        """The host's time in seconds, on the simulated clock."""
        return self._device.clock.now()

    def times(self) -> SimulatedTimes:
        """Rounds, idle time and host time since the start, all of it simulated."""
        return self._device.times()

    # runtime

    def stream(self) -> Stream:
        """A queue of its own."""
        return SimStream(self._device)

    def event(self) -> Event:
        """An unrecorded event."""
        return SimEvent(self._device)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory that holds garbage, so that reading it unwritten shows."""
        value = GARBAGE.get(dtype, float("nan") if dtype.is_floating_point else 1)
        return torch.full(tuple(shape), value, dtype=dtype)

    host_buffer = empty

    def to_device(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream) -> None:
        """Copy when the stream comes to it: `src` must stay unchanged until an event after it."""
        assert dst.shape == src.shape, (dst.shape, src.shape)
        stream.launch(_copy, dst, src)

    to_host = to_device

    def memory(self) -> MemoryInfo:
        """The chip's memory, all of it free; weights are not in it, so the planner takes them off."""
        per_chip = PLAIN_MEMORY if self._chip is None else self._chip.memory
        total = self._options.memory or self._options.count * per_chip
        return MemoryInfo(total=total, free=total, kv_default=int(total * KV_SHARE))

    def capture(self, fn: Callable[..., None], *args: Any, host_params: Sequence[str] = ()) -> Graph:
        """The callable, run again at each replay."""
        return RecordedGraph(fn, args, frozenset(host_params))

    # ops

    def support(self, op: OpSpec, static: Any) -> Support:
        """The first provider that accepts."""
        return self._table.support(op, static)

    def supports(self, op: OpSpec, static: Any) -> list[Support]:
        """Every provider's answer, in order."""
        return self._table.supports(op, static)

    def bind(self, op: OpSpec, static: Any) -> Callable[..., Any]:
        """The provider's own function. BackendError for ops over weights and KV."""
        return self._table.bind(op, static)

    def prepare_weight(self, role: str, tensor: torch.Tensor, quant: str | None) -> Any:
        """There is nothing that would read it."""
        raise BackendError("the sim backend has no weights; its model is run as a whole (bind_model)")

    # kv

    def kv_layout(self, specs: Sequence[KVSpec]) -> KVLayout:
        """Blocks of the size that was chosen, with the bytes that the real model's would have."""
        return sim_kv.layout(specs, self._options.block_size, num_scratch_blocks=int(self._options.graphs))

    def allocate_kv(self, specs: Sequence[KVSpec], num_blocks: Sequence[int]) -> sim_kv.SimKVCache:
        """A word for every slot."""
        return sim_kv.allocate(specs, num_blocks, num_layers=self._options.layers, block_size=self._options.block_size)

    def copy_blocks(self, kv: KVCache, group: int, src_B: Int32Array, dst_B: Int32Array, stream: Stream) -> None:
        """Copy blocks in stream order."""
        stream.launch(sim_kv.copy_blocks, sim_kv.own(kv), group, src_B, dst_B)

    def export_blocks(self, kv: KVCache, layer: int, ids_B: Int32Array) -> tuple[torch.Tensor, torch.Tensor]:
        """Words of a group as int64 `[B, S, L, 1]`."""
        return sim_kv.export_blocks(sim_kv.own(kv).layer(layer), ids_B)

    def import_blocks(
        self, kv: KVCache, layer: int, ids_B: Int32Array, k_BSKD: torch.Tensor, v_BSKD: torch.Tensor
    ) -> None:
        """Store what `export_blocks` gave."""
        sim_kv.import_blocks(sim_kv.own(kv).layer(layer), ids_B, k_BSKD)

    def discard_blocks(self, kv: KVCache, group: int, ids_B: Int32Array) -> None:
        """Poison them at once: a step that is still to run and reads them fails."""
        sim_kv.poison_blocks(sim_kv.own(kv), group, ids_B)

    # attention

    def plan_attention(self, batch: AttentionBatch, stream: Stream) -> sim_kv.SimAttentionPlan:
        """The batch's own arrays, read when the step runs."""
        return sim_kv.plan(batch, host_lengths=self._options.host_lengths)

    # whole model

    def bind_model(self, spec: ModelSpec) -> Forward:
        """The fingerprint forward over the model's KV groups."""
        return FingerprintForward(spec, self._options, self._device)


def _check(config: BackendConfig) -> None:
    if config.assume is not None:
        raise BackendError(f"the sim backend assumes nothing; name the chip as its device: sim:{config.assume}")
    if config.dtype not in ("auto", *DTYPES):
        raise BackendError(f"the sim backend counts bytes of {', '.join(DTYPES)}, not of {config.dtype}")


def _cost(options: SimOptions, chip: Chip | None) -> Cost:
    if chip is None or options.step_ms is not None:
        return FixedCost(step_s=(options.step_ms or 0.0) * 1e-3)
    return RooflineCost(chip=chip, bits=options.bits, count=options.count)


def _copy(dst: torch.Tensor, src: torch.Tensor) -> None:
    dst.copy_(src)

"""The backend seam: everything the engine's core may ask of a chip, as protocols and plain data.

What it is not: an implementation, a registry, or a place for vendor names. A backend implements
`Backend`; the core asks for capabilities, never for names. Shapes use the suffix legend of
`backends/ops/spec.py` (T tokens, R rows = requests in a step, N query heads, K KV heads, D head
dim, B blocks, S tokens in a block).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    from isoinfer.backends.descriptor import DeviceInfo
    from isoinfer.backends.ops.spec import OpSpec
    from isoinfer.layers.batch import ForwardBatch

Int32Array = npt.NDArray[np.int32]
SupportStatus = Literal["supported", "unsupported", "unverified"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do on its device. Data, frozen at creation; the default is the careful answer.

    `kernel_block_sizes`: KV block sizes in tokens that its attention accepts, preferred first.
    `host_lengths`: attention needs exact KV lengths on the host. `overlap_pays`: depth 2 is faster
    than depth 1 here. `max_in_flight`: submitted steps it tolerates. `graph_limit`: graphs it can hold.
    `rings`: it lays out window groups as rings.
    """

    dtypes: tuple[str, ...]
    default_dtype: str
    quantizations: tuple[str, ...] = ()
    kernel_block_sizes: tuple[int, ...] = (16,)
    host_lengths: bool = False
    in_order: bool = True
    max_in_flight: int = 1
    overlap_pays: bool = False
    graph_limit: int = 0
    bitwise_deterministic: bool = False
    rings: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInfo:
    """Memory of a device in bytes. `kv_default`: what the backend suggests for KV when not told."""

    total: int
    free: int
    kv_default: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """A provider's answer for one op with one static spec. `reason` is set unless supported."""

    status: SupportStatus
    provider: str
    reason: str = ""
    accumulate_dtype: str = "float32"
    deterministic: bool = True
    batch_invariant: bool = False
    graph_safe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSpec:
    """One KV group: layers that share a block table and a pool of blocks.

    `layers` are model layer numbers; no layer is in two groups. `window` in tokens, None = all: no layer of
    the group reads further back, so blocks that lie wholly before it may be given back.

    `ring`: the group has rings instead, of so many positions: its window and a margin for drafts that are rejected.
    A ring is one block of `ring` tokens that stays with a stable slot, position p at place p % ring. The group has
    no block table; wherever the seam counts or names blocks of a group, those of this one are the rings by slot.
    The last is scratch, which no slot owns.
    """

    name: str
    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    dtype: str
    window: int | None = None
    ring: int | None = None

    def __post_init__(self) -> None:
        assert self.ring is None or (self.window is not None and self.ring > self.window), self


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """How a backend lays KV out. `block_size`: tokens in a block, one number for all groups but rings.

    `bytes_per_block`: for each group, in the order of the specs, one block over all its layers.
    `num_scratch_blocks`: how many more each group needs, behind its pool, for padding rows to write to.
    """

    block_size: int
    bytes_per_block: tuple[int, ...]
    num_scratch_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBatch:
    """One step's attention problem over the paged KV of one group, before a backend plans it.

    `query_len_R`: new tokens of each row (host). `kv_len_upper_R`: host, always, at least the true
    length. `kv_len_device_R`: the true length including the new tokens, always. `kv_len_host_R`:
    exact on the host, or None while drafts are unsettled. `block_table_RB`: device, int32. Where a block was
    given back because it lies wholly before the window of all new tokens, its entry is any block of the group.
    """

    query_len_R: Int32Array
    kv_len_upper_R: Int32Array
    kv_len_device_R: torch.Tensor
    block_table_RB: torch.Tensor
    block_size: int
    maybe_kv_len_host_R: Int32Array | None = None

    @property
    def kv_len_host_R(self) -> Int32Array:
        """Exact host lengths. Reading them while absent is an error, never a wrong number."""
        if self.maybe_kv_len_host_R is None:
            raise AssertionError("exact host KV lengths are absent in this step; use kv_len_device_R or host_lengths")
        return self.maybe_kv_len_host_R


@dataclass(frozen=True, slots=True, kw_only=True)
class RingBatch:
    """One step over the rings of one group. Plain data: there is nothing that a backend would have to work out.

    `query_len_R`: new tokens of each row (host). All else is int32 on the device. `kv_len_R`: the true length
    including the new tokens. `ring_R`: the row's ring. `floor_R`: positions below are invisible to the row; at
    most its first new position. `positions_T`: of the new tokens. `ring_T`: the ring that a new token is written
    to: the row's, or the scratch ring where a later token of the row takes its place.
    """

    query_len_R: Int32Array
    kv_len_R: torch.Tensor
    ring_R: torch.Tensor
    floor_R: torch.Tensor
    positions_T: torch.Tensor
    ring_T: torch.Tensor

    @property
    def host_params(self) -> dict[str, Any]:
        """Attention over rings reads nothing else from the host. An AttentionPlan has this."""
        return {}


class Event(Protocol):
    """A point in a stream's work."""

    def record(self, stream: Stream) -> None: ...
    def query(self) -> bool: ...
    def synchronize(self) -> None:
        """Make the host wait. Raises StepError if work before this event, since the last one, failed."""


class Stream(Protocol):
    """An in-order queue of device work."""

    def launch(self, fn: Callable[..., None], *args: Any) -> None:
        """Enqueue `fn(*args)` and return at once. `fn` returns nothing, reads only frozen arguments and
        device tensors and writes only backend-owned buffers. Its exception surfaces at the next event."""

    def wait(self, event: Event) -> None:
        """Order later work of this stream after `event`, without making the host wait."""

    def synchronize(self) -> None:
        """Make the host wait for all work so far."""


class Graph(Protocol):
    """A captured piece of device work. `replay` takes the host parameters that may change and refuses others."""

    def replay(self, host_params: dict[str, Any]) -> None: ...


class Weight(Protocol):
    """A prepared weight: opaque to the core, which only counts its bytes."""

    @property
    def nbytes(self) -> int: ...


class LayerKV(Protocol):
    """One layer's KV in the backend's own physical shape. The core never indexes it."""

    @property
    def block_size(self) -> int:
        """Tokens in a block; of a layer with rings, positions in a ring."""


class KVCache(Protocol):
    """All groups' KV."""

    def layer(self, index: int) -> LayerKV:
        """The KV of model layer `index`."""


class AttentionPlan(Protocol):
    """What a backend worked out for an AttentionBatch: host lists or device tensors, masks, workspace.

    `host_params`: what attention reads from the host, by name. A graph is captured with these names and
    replayed with the next plan's values; empty where everything is read from device tensors. They come from the
    rows' lengths alone, so all groups of a step have the same, but for rings, which have none.
    """

    @property
    def host_params(self) -> dict[str, Any]: ...


class Forward(Protocol):
    """A model that runs: built from bound ops, or compiled whole by a backend (`bind_model`)."""

    def hidden(self, batch: ForwardBatch, kv: KVCache) -> torch.Tensor:
        """hidden_TH of all tokens of the batch, after the final norm; writes K and V. May be captured."""

    def logits(self, hidden_RH: torch.Tensor) -> torch.Tensor:
        """logits_RV in float32 of any rows of `hidden`'s result. May be captured."""


class Backend(Protocol):
    """A chip. Small and all active: every member is called by the engine."""

    @property
    def name(self) -> str: ...
    @property
    def info(self) -> DeviceInfo: ...
    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def collective_backend(self) -> str: ...

    def describe(self) -> list[str]:
        """What was chosen at start, one short line each (threads, instruction sets, providers)."""

    # runtime
    def stream(self) -> Stream: ...
    def event(self) -> Event: ...
    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Device memory, contents undefined."""

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Host memory that async copies may use (pinned where that means something)."""

    def to_device(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream) -> None:
        """Copy host `src` to device `dst`, async on `stream`. `src` must stay unchanged until an event."""

    def to_host(self, dst: torch.Tensor, src: torch.Tensor, stream: Stream) -> None:
        """Copy device `src` to host `dst`, async on `stream`."""

    def memory(self) -> MemoryInfo: ...
    def capture(self, fn: Callable[..., None], *args: Any, host_params: Sequence[str] = ()) -> Graph:
        """Record device work. `host_params`: keyword arguments of `fn` that every replay must give."""

    # ops
    def support(self, op: OpSpec, static: Any) -> Support:
        """What `bind` would do: the provider it takes, or "unsupported" with every refusal as the reason."""

    def supports(self, op: OpSpec, static: Any) -> list[Support]:
        """Every provider's answer, in the order of preference."""

    def bind(self, op: OpSpec, static: Any) -> Callable[..., Any]:
        """The provider's own function for `op` with `static`; UserError with the reason if there is none."""

    def prepare_weight(self, role: str, tensor: torch.Tensor, quant: str | None) -> Weight:
        """Take a checkpoint tensor for the op that will read it.

        Roles: linear `[N, K]`; head and router, the same with float32 results; embedding `[V, H]`;
        experts `[E, N, K]`; vector, which stays a plain device tensor."""

    # kv
    def kv_layout(self, specs: Sequence[KVSpec]) -> KVLayout: ...
    def allocate_kv(self, specs: Sequence[KVSpec], num_blocks: Sequence[int]) -> KVCache:
        """`num_blocks`: blocks of each group, in the order of `specs`; its scratch blocks are the last of them."""

    def copy_blocks(self, kv: KVCache, group: int, src_B: Int32Array, dst_B: Int32Array, stream: Stream) -> None:
        """Copy blocks within every layer of group `group` (an index into the specs), in stream order."""

    def export_blocks(self, kv: KVCache, layer: int, ids_B: Int32Array) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of blocks as host tensors `[B, S, K, D]`, whatever the physical shape."""

    def import_blocks(
        self, kv: KVCache, layer: int, ids_B: Int32Array, k_BSKD: torch.Tensor, v_BSKD: torch.Tensor
    ) -> None: ...
    def discard_blocks(self, kv: KVCache, group: int, ids_B: Int32Array) -> None:
        """These blocks of group `group` are truly free now; a debug backend poisons them."""

    # attention
    def plan_attention(self, batch: AttentionBatch, stream: Stream) -> AttentionPlan:
        """Work out a batch, once for all layers of a group. What it copies to the device goes through `stream`."""

    # whole model
    def bind_model(self, spec: ModelSpec) -> Forward | None:
        """None means the op path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model as plain data, for backends that compile it whole. Work and bytes are of one token decoded alone.

    `weight_bytes`: weights that are read; `bytes_per_token`: these and the K and V written. `max_position`:
    the longest sequence in tokens. `expert_bytes`: all routed experts, of which one token reads `expert_share`.
    `maybe_kv_read`: what a query reads of KV where `kv_specs` do not say it, (bytes, bytes for each token before it).
    """

    architecture: str
    kv_specs: tuple[KVSpec, ...]
    flops_per_token: int
    bytes_per_token: int
    weight_bytes: int
    num_layers: int
    vocab_size: int
    hidden_size: int
    max_position: int
    expert_bytes: int = 0
    expert_share: float = 0.0
    maybe_kv_read: tuple[int, int] | None = None

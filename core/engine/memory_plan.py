"""How much KV there is in each group, and how long a request may grow: worked out once, from numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from isoinfer.backends.interface import KVLayout, KVSpec, MemoryInfo
from isoinfer.config import EngineConfig
from isoinfer.engine.slots import slots_for
from isoinfer.errors import UserError

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """KV of one group. `num_blocks`: one more than usable, since block 0 is never handed out.

    `ring`: the blocks are rings of so many tokens, one a slot, and the last one is scratch.
    """

    name: str
    num_layers: int
    num_blocks: int
    bytes_per_block: int
    ring: int | None = None

    @property
    def num_usable(self) -> int:
        """Blocks that requests can hold."""
        return self.num_blocks - 1

    @property
    def num_bytes(self) -> int:
        """Bytes of the usable blocks."""
        return self.num_usable * self.bytes_per_block


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """KV by group, in the order of the model's specs, and the resulting context length.

    Groups with rings come last. `num_scratch_blocks` come on top and behind in each of the others: padding rows of
    captured graphs write there.
    """

    groups: tuple[GroupPlan, ...]
    block_size: int
    max_model_len: int
    num_scratch_blocks: int = 0

    @property
    def num_blocks(self) -> tuple[int, ...]:
        """Blocks of each group's pool, block 0 included. Rings have none."""
        return tuple(group.num_blocks for group in self.groups if group.ring is None)

    @property
    def rings(self) -> tuple[int, ...]:
        """Positions of a ring, for each group with rings."""
        return tuple(group.ring for group in self.groups if group.ring is not None)

    @property
    def num_allocated(self) -> tuple[int, ...]:
        """Blocks, or rings, of each group that the backend allocates."""
        return (
            *(num_blocks + self.num_scratch_blocks for num_blocks in self.num_blocks),
            *(group.num_blocks for group in self.groups if group.ring is not None),
        )

    def describe(self) -> tuple[str, ...]:
        """Lines for the start-up report: the whole, then each group."""
        total = _shown(sum(group.num_bytes for group in self.groups))
        return (
            f"kv: {total} in blocks of {self.block_size} tokens; context {self.max_model_len} tokens",
            *(
                f"kv: {group.name}, {group.num_layers} layers: {_shown(group.num_bytes)}, {self._content(group)}"
                for group in self.groups
            ),
        )

    def _content(self, group: GroupPlan) -> str:
        if group.ring is not None:
            return f"{group.num_usable} rings of {group.ring} tokens"
        return f"{group.num_usable} blocks = {group.num_usable * self.block_size} tokens"


def plan_memory(
    config: EngineConfig,
    layout: KVLayout,
    memory: MemoryInfo,
    max_position: int,
    specs: Sequence[KVSpec],
    depth: int = 1,
) -> MemoryPlan:
    """Size KV from the user's wish or the backend's suggestion, for `depth` steps in flight.

    UserError, with numbers, where it cannot fit.
    """
    longest = _longest(config, max_position)
    kv_bytes = config.cache.kv_memory or memory.kv_default
    if kv_bytes > memory.free:
        raise UserError(f"kv_memory is {_shown(kv_bytes)} but only {_shown(memory.free)} are free; ask for less")

    def usable(num_blocks: int) -> list[int]:
        """Blocks of each group where a full group has `num_blocks`."""
        return [
            min(num_blocks, _most_useful(config, spec.window, longest, layout.block_size, depth))
            if spec.ring is None
            else slots_for(config.scheduler.max_num_seqs, depth)
            for spec in specs
        ]

    def size(num_blocks: int) -> int:
        return sum(n * each for n, each in zip(usable(num_blocks), layout.bytes_per_block, strict=True))

    most = _most_useful(config, None, longest, layout.block_size, depth)
    num_blocks = bisect_right(range(most + 1), kv_bytes, key=size) - 1
    capacity = num_blocks * layout.block_size
    if size(0) > kv_bytes:
        raise UserError(
            f"{_shown(kv_bytes)} for KV do not hold the rings of {config.scheduler.max_num_seqs} requests, which need "
            f"{_shown(size(0))}; lower max_num_seqs (--max-num-seqs) or raise kv_memory (--kv-memory)"
        )
    if capacity < (2 if config.max_model_len is None else longest):
        needed = size(_blocks(longest, layout.block_size))
        raise UserError(
            f"{_shown(kv_bytes)} for KV hold {capacity} tokens, but one request of {longest} tokens needs "
            f"{_shown(needed)}; raise kv_memory (--kv-memory) or lower max_model_len (--max-model-len)"
        )
    groups = (
        GroupPlan(name=spec.name, num_layers=len(spec.layers), num_blocks=n + 1, bytes_per_block=each, ring=spec.ring)
        for spec, n, each in zip(specs, usable(num_blocks), layout.bytes_per_block, strict=True)
    )
    return MemoryPlan(
        groups=tuple(groups),
        block_size=layout.block_size,
        max_model_len=min(longest, capacity),
        num_scratch_blocks=layout.num_scratch_blocks,
    )


def _longest(config: EngineConfig, max_position: int) -> int:
    wanted = config.max_model_len
    if wanted is not None and wanted < 2:
        raise UserError(f"max_model_len must be at least 2, got {wanted}")
    if wanted is not None and wanted > max_position:
        raise UserError(f"max_model_len is {wanted} but the model handles at most {max_position} positions; lower it")
    return wanted or max_position


def _most_useful(config: EngineConfig, window: int | None, longest: int, block_size: int, depth: int) -> int:
    """The most blocks of a group that are of use: what all running requests hold, and as much again for what
    is cached.

    A request in a window group holds a window, which may begin and end within a block, and its part of the
    tokens of the steps in flight; what the window has just passed comes back one step later.
    """
    blocks = _blocks(longest, block_size)
    in_flight = 0
    if window is not None:
        blocks = min(blocks, _blocks(window, block_size) + 2)
        in_flight = (depth + 1) * _blocks(config.scheduler.max_num_batched_tokens, block_size)
    shares = 2 if config.cache.enable_prefix_caching else 1
    return shares * config.scheduler.max_num_seqs * blocks + in_flight


def _blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def _shown(size: int) -> str:
    """Bytes for people: 1.50 GiB, 64.0 MiB, 10.0 KiB."""
    if size >= GIB:
        return f"{size / GIB:.2f} GiB"
    return f"{size / (GIB >> 10):.1f} MiB" if size >= GIB >> 10 else f"{size / 1024:.1f} KiB"

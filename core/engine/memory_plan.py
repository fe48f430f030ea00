"""How much KV there is, and how long a request may grow: worked out once, from numbers, before allocating."""

from __future__ import annotations

from dataclasses import dataclass

from isoinfer.backends.interface import KVLayout, MemoryInfo
from isoinfer.config import EngineConfig
from isoinfer.errors import UserError

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """KV blocks (one more than usable: block 0 is never handed out) and the resulting context length.

    `num_scratch_blocks` come on top and behind: padding rows of captured graphs write there.
    """

    num_blocks: int
    block_size: int
    bytes_per_block: int
    max_model_len: int
    num_scratch_blocks: int = 0

    @property
    def num_allocated(self) -> int:
        """Blocks that the backend allocates."""
        return self.num_blocks + self.num_scratch_blocks

    def describe(self) -> str:
        """One line for the start-up report."""
        usable = self.num_blocks - 1
        return (
            f"kv: {usable * self.bytes_per_block / GIB:.2f} GiB, {usable} blocks of {self.block_size} tokens = "
            f"{usable * self.block_size} tokens; context {self.max_model_len} tokens"
        )


def plan_memory(config: EngineConfig, layout: KVLayout, memory: MemoryInfo, max_position: int) -> MemoryPlan:
    """Size KV from the user's wish or the backend's suggestion. UserError, with numbers, where it cannot fit."""
    wanted = config.max_model_len
    if wanted is not None and wanted < 2:
        raise UserError(f"max_model_len must be at least 2, got {wanted}")
    if wanted is not None and wanted > max_position:
        raise UserError(f"max_model_len is {wanted} but the model handles at most {max_position} positions; lower it")
    longest = wanted or max_position
    kv_bytes = config.cache.kv_memory or memory.kv_default
    if kv_bytes > memory.free:
        raise UserError(
            f"kv_memory is {kv_bytes / GIB:.2f} GiB but only {memory.free / GIB:.2f} GiB are free; ask for less"
        )
    most_useful = config.scheduler.max_num_seqs * -(-longest // layout.block_size)
    usable = min(kv_bytes // layout.bytes_per_block, most_useful)
    capacity = usable * layout.block_size
    if capacity < min(longest, 2) or (wanted is not None and capacity < wanted):
        needed = -(-longest // layout.block_size) * layout.bytes_per_block
        raise UserError(
            f"{_shown(kv_bytes)} for KV hold {capacity} tokens, but one request of {longest} tokens needs "
            f"{_shown(needed)}; raise kv_memory (--kv-memory) or lower max_model_len (--max-model-len)"
        )
    return MemoryPlan(
        num_blocks=usable + 1,
        block_size=layout.block_size,
        bytes_per_block=layout.bytes_per_block,
        max_model_len=min(longest, capacity),
        num_scratch_blocks=layout.num_scratch_blocks,
    )


def _shown(size: int) -> str:
    """Bytes for people: 1.5 GiB, 64.0 MiB, 10.0 KiB."""
    for unit, name in ((GIB, "GiB"), (GIB >> 10, "MiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 1024:.1f} KiB"

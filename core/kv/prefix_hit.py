"""How much of a request's tokens is cached, over all groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isoinfer.kv.group_blocks import GroupBlocks


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixHit:
    """What a lookup found. It holds no blocks: they may be evicted before the request is admitted.

    `num_tokens`: cached tokens, whole blocks. `num_queried`: tokens looked up. `key`: the request's extra key.
    `names`: of the request's first blocks, as far as they were computed (one more than the hit, mostly).
    """

    num_tokens: int
    num_queried: int
    key: bytes
    names: tuple[bytes, ...]


def longest_hit(groups: Sequence[GroupBlocks], names: Sequence[bytes], limit: int) -> int:
    """The most blocks, at most `limit`, after which a request can go on without computing them.

    A query sees all blocks of a full group, and of a window group those that its window touches.
    """
    num = limit
    while num:
        lower = min(_first_missing(group, names, num) for group in groups)
        if lower == num:
            break
        num = lower  # what would end between the two lacks the same block: its window begins no later
    return num


def _first_missing(group: GroupBlocks, names: Sequence[bytes], num: int) -> int:
    """The first block that a query after `num` blocks sees and that is not cached; `num` if there is none."""
    needed = range(group.first_visible(num * group.block_size), num)
    return next((index for index in needed if names[index] not in group.cache), num)

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

    A query sees all blocks of a full group, and of a window group those that its window touches. Each miss
    lowers the candidate to the missing block, so every name is looked at about once a group.
    """
    num = limit
    while num:
        lower = min(_longest_in(group, names, num) for group in groups)
        if lower == num:
            break
        num = lower
    return num


def _longest_in(group: GroupBlocks, names: Sequence[bytes], num: int) -> int:
    """`num`, if the group has what a query after `num` blocks sees; otherwise a lower candidate."""
    needed = range(group.first_visible(num * group.block_size), num)
    if group.window is None:
        return next((index for index in needed if names[index] not in group.cache), num)
    return next((index for index in reversed(needed) if names[index] not in group.cache), num)

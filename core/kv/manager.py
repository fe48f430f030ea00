"""KV of all requests: which blocks each slot holds in each group, what is cached, what waits for a step.

It decides nothing about who runs. A block's life:

    extend -> computed by a step -> settle: published -> release, or the window passed
           -> pending until the fence has settled -> cached if published, else free -> evicted or found again

Every group has the same block size, so a slot's tables have the same number of places in all of them.
Suffixes: S slots, R rows (slots of a call), L tokens of a request, B places of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from isoinfer.backends.interface import Int32Array
from isoinfer.kv.deferred_release import DeferredRelease
from isoinfer.kv.group_blocks import GroupBlocks, IntArray, KVGroup
from isoinfer.kv.prefix_hash import HashChain, packed_tokens
from isoinfer.kv.prefix_hit import PrefixHit, longest_hit


@dataclass(frozen=True, slots=True, kw_only=True)
class KVStats:
    """Counts since start. `queries` and `hits` are tokens of admitted requests that were looked up."""

    queries: int = 0
    hits: int = 0
    evictions: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Release:
    """Blocks on their way out. Compared by identity: two requests may give the same shared blocks back."""

    group: GroupBlocks
    blocks: list[int]


def _drop(release: _Release) -> None:
    release.group.pool.drop(release.blocks)


@dataclass(frozen=True, slots=True)
class _Occupant:
    """The request in a slot, as far as publishing needs it."""

    tokens_L: Int32Array
    chain: HashChain


def _keep_quiet(group: int, blocks: Sequence[int]) -> None:
    """Nobody wants to know what was discarded."""


class KVManager:
    """Tables by slot over one pool a group, with prefix cache and deferred release.

    `max_tokens`: the most tokens of one slot, drafts in flight included. `step_tokens`: the most tokens of
    one step. `replay`: tokens at the end of a hit that are computed all the same; a hit that is no longer is none.
    `verify_tokens`: compare the tokens of every hit, not only their hash. `on_discard(group, blocks)`: these blocks
    were freed or evicted, and nothing may read their contents any more. `num_rings`: KV groups with rings, which come
    after the others; a slot's rings are its own for as long as the slot is, so there is nothing to allocate.
    """

    def __init__(
        self,
        groups: Sequence[KVGroup],
        *,
        block_size: int,
        num_slots: int,
        max_tokens: int,
        step_tokens: int,
        prefix_caching: bool = True,
        num_rings: int = 0,
        replay: int = 0,
        verify_tokens: bool = False,
        on_discard: Callable[[int, Sequence[int]], None] = _keep_quiet,
    ) -> None:
        self.block_size = block_size
        assert groups or not prefix_caching, "there are no blocks to cache"
        assert not replay or all(group.window is None for group in groups), "replay reads what left the window"
        self.prefix_caching, self.replay = prefix_caching, replay
        self._max_tokens = max_tokens
        self._verify_tokens = verify_tokens
        self._groups = tuple(
            GroupBlocks(
                group,
                block_size=block_size,
                num_slots=num_slots,
                num_columns=-(-max_tokens // block_size),
                step_tokens=step_tokens,
                verify_tokens=verify_tokens,
                on_discard=partial(on_discard, index),
            )
            for index, group in enumerate(groups)
        )
        self._count_S = np.zeros(num_slots, dtype=np.int64)
        self._published_S = np.zeros(num_slots, dtype=np.int64)
        self._occupants: list[_Occupant | None] = [None] * num_slots
        self._deferred: DeferredRelease[_Release] = DeferredRelease(_drop)
        self._ring_groups = range(len(groups), len(groups) + num_rings)
        self._deferred_rings: DeferredRelease[int] = DeferredRelease(partial(self._discard_rings, on_discard))
        self._queries = self._hits = 0

    # admission

    def fits(self, num_tokens: int) -> str:
        """Why a request of `num_tokens` can not even run alone, with the numbers; "" if it can.

        Of a window group it needs no more than a window and one step, since a long prompt is computed in chunks.
        """
        if num_tokens > self._max_tokens:
            return f"{num_tokens} tokens are more than the {self._max_tokens} that one request may have"
        for group in self._groups:
            need = min(self._blocks_for(num_tokens), group.most_held)
            if need > group.pool.num_usable:
                return (
                    f"{num_tokens} tokens need {need} KV blocks of {self.block_size} tokens in group {group.name!r}, "
                    f"which has {group.pool.num_usable}"
                )
        return ""

    def lookup(self, tokens_L: Int32Array, key: bytes, earlier: PrefixHit | None = None) -> PrefixHit:
        """The longest cached prefix of a request's known tokens: whole blocks, at least one token left over.

        Takes no blocks. `earlier`: what an earlier lookup of the same request found, so that nothing is
        hashed twice.
        """
        assert earlier is None or earlier.key == key, "an earlier lookup had another key"
        limit = (tokens_L.size - 1) // self.block_size if self.prefix_caching else 0
        chain = HashChain(block_size=self.block_size, key=key, names=earlier.names if earlier else ())
        full = [group for group in self._groups if group.window is None]
        num = 0
        for name in chain.walk(tokens_L, limit):
            if any(name not in group.cache for group in full):
                break
            num += 1
        num = self._worth_it(longest_hit(self._groups, chain.names, num))
        self._verify(tokens_L, chain.names, num)
        return PrefixHit(num_tokens=num * self.block_size, num_queried=tokens_L.size, key=key, names=tuple(chain.names))

    def has_room(self, slots_R: IntArray, upper_R: IntArray, spare: int, hit: PrefixHit | None = None) -> bool:
        """Whether all these slots can grow to `upper_R` tokens together, with `spare` blocks left in each group.

        Counts what is free now, not what is pending. `hit`: what the last slot, not admitted yet, would take over.
        """
        end_R = self._blocks_for_each(upper_R)
        num = self._still_cached(hit)
        for group in self._groups:
            free, first_R = group.pool.num_free, group.first_S[slots_R]
            held_R = self._count_S[slots_R] - first_R
            if hit is not None:
                blocks = group.visible(hit.names, num)
                free -= group.pool.num_unowned(blocks)
                first_R[-1], held_R[-1] = num - len(blocks), len(blocks)
            need_R = np.minimum(end_R - first_R, group.most_held) - held_R
            if int(np.maximum(need_R, 0).sum()) + spare > free:
                return False
        return True

    def admit(self, slot: int, tokens_L: Int32Array, key: bytes, hit: PrefixHit | None) -> int:
        """Put a request into an empty slot, with the blocks of `hit` that are still cached.

        `tokens_L`: all its tokens, live: the scheduler appends to them, and they are read when blocks are
        published. Returns the number of tokens whose blocks are there. The last `replay` of them are computed again,
        but not written.
        """
        assert self._occupants[slot] is None, f"slot {slot} is occupied"
        assert slot not in self._deferred_rings, f"a submitted step may still touch the rings of slot {slot}"
        assert hit is None or hit.key == key, "the hit is for another key"
        num = self._still_cached(hit)
        names = hit.names if hit is not None else ()
        for group in self._groups:
            group.take_over(slot, group.visible(names, num), num)
        self._occupants[slot] = _Occupant(tokens_L, HashChain(block_size=self.block_size, key=key, names=names))
        self._count_S[slot] = self._published_S[slot] = num
        if hit is not None:
            self._queries += hit.num_queried
            self._hits += max(num * self.block_size - self.replay, 0)
        return num * self.block_size

    # running

    def missing(self, slots_R: IntArray, upper_R: IntArray) -> IntArray:
        """Blocks that each row lacks, over all groups, to hold `upper_R` tokens."""
        lacking_R: IntArray = self._blocks_for_each(upper_R) - self._count_S[slots_R]
        return np.maximum(lacking_R, 0) * len(self._groups)

    def extend(self, slot: int, num_tokens: int) -> bool:
        """Make `slot` hold `num_tokens` in every group. False, and nothing changes, if one has too few blocks."""
        assert self._occupants[slot] is not None, f"slot {slot} is empty"
        assert num_tokens <= self._max_tokens, (num_tokens, self._max_tokens)
        start, end = int(self._count_S[slot]), self._blocks_for(num_tokens)
        if end <= start:
            return True
        if any(end - start > group.pool.num_free for group in self._groups):
            return False
        for group in self._groups:
            group.extend(slot, start, end)
        self._count_S[slot] = end
        return True

    def settle(self, slots_R: IntArray, confirmed_R: IntArray, fence: int) -> None:
        """The KV of the first `confirmed_R` tokens of these slots is computed and settled, and will not change.

        Publishes the blocks that are full now, and gives back those that no later query can see.
        """
        if self.prefix_caching:
            full_R = confirmed_R // self.block_size
            for row in np.flatnonzero(full_R > self._published_S[slots_R]).tolist():
                self._publish(int(slots_R[row]), int(full_R[row]))
        for group in self._groups:
            self._give_back(group, group.pass_window(slots_R, confirmed_R), fence)

    def release(self, slot: int, fence: int) -> None:
        """Empty the slot. Its blocks go back when step `fence` has settled: at once if it has."""
        assert self._occupants[slot] is not None, f"slot {slot} is released twice"
        for group in self._groups:
            self._give_back(group, group.clear(slot, int(self._count_S[slot])), fence)
        self._count_S[slot] = self._published_S[slot] = 0
        self._occupants[slot] = None
        if self.has_rings:
            self._deferred_rings.add(slot, fence)

    def settled(self, step_id: int) -> None:
        """All steps up to `step_id` have settled: what waited for them goes back."""
        self._deferred.settled(step_id)
        self._deferred_rings.settled(step_id)

    def tables(self, group: int, slots_R: IntArray) -> Int32Array:
        """A copy of the tables of `slots_R`, `[R, B]`, as wide as the widest. Entries without a block are 0."""
        width = int(self._count_S[slots_R].max(initial=1))
        table_RB: Int32Array = self._groups[group].table_SB[slots_R, :width]
        return table_RB

    # state

    @property
    def num_groups(self) -> int:
        """KV groups with blocks, each with tables of its own."""
        return len(self._groups)

    @property
    def has_rings(self) -> bool:
        """Whether some KV is in rings: then a slot cannot go back to tokens before those that were last computed."""
        return bool(self._ring_groups)

    def num_free(self, group: int) -> int:
        """Blocks that can be had now: free ones and cached ones."""
        return self._groups[group].pool.num_free

    def num_pending(self, group: int) -> int:
        """Blocks that go back when a submitted step has settled."""
        return self._groups[group].pool.num_pending

    @property
    def has_pending(self) -> bool:
        """Whether any block goes back without anyone giving way, once a submitted step has settled."""
        return any(group.pool.num_pending for group in self._groups)

    @property
    def capacity(self) -> int:
        """Tokens that one request could hold if it were alone."""
        usable = [group.pool.num_usable for group in self._groups if group.most_held > group.pool.num_usable]
        return min([self._max_tokens, *(blocks * self.block_size for blocks in usable)])

    @property
    def usage(self) -> float:
        """Share of the fullest pool that is owned or pending, 0 to 1."""
        return max((1.0 - group.pool.num_free / group.pool.num_usable for group in self._groups), default=0.0)

    @property
    def stats(self) -> KVStats:
        """Counts since start."""
        evictions = sum(group.pool.num_evictions for group in self._groups)
        return KVStats(queries=self._queries, hits=self._hits, evictions=evictions)

    def check(self) -> None:
        """Assert every invariant: the partition of each pool, owners, tables, names, releases."""
        self._deferred.check()
        self._deferred_rings.check()
        waiting = self._deferred.waiting()
        empty_S = np.array([occupant is None for occupant in self._occupants])
        assert not self._count_S[empty_S].any(), "an empty slot has blocks"
        assert (self._published_S <= self._count_S).all(), "more is published than there is"
        for group in self._groups:
            group.check(self._count_S, [block for one in waiting if one.group is group for block in one.blocks])

    # inside

    def _discard_rings(self, on_discard: Callable[[int, Sequence[int]], None], slot: int) -> None:
        for group in self._ring_groups:
            on_discard(group, [slot])

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _blocks_for_each(self, num_tokens_R: IntArray) -> IntArray:
        return (num_tokens_R + (self.block_size - 1)) // self.block_size

    def _still_cached(self, hit: PrefixHit | None) -> int:
        """Blocks of a hit that are there now: some may have been evicted since the lookup."""
        if hit is None:
            return 0
        return self._worth_it(longest_hit(self._groups, hit.names, hit.num_tokens // self.block_size))

    def _worth_it(self, num: int) -> int:
        """`num` blocks of a hit, or 0 where all of them would be computed again."""
        return num if num * self.block_size > self.replay else 0

    def _publish(self, slot: int, end: int) -> None:
        """Name the blocks of `slot` that are full and settled, up to place `end`."""
        occupant, start = self._occupants[slot], int(self._published_S[slot])
        assert occupant is not None, f"slot {slot} is empty"
        assert end <= self._count_S[slot], f"slot {slot} has no blocks for what it has settled"
        occupant.chain.extend(occupant.tokens_L, end)
        names = occupant.chain.names[start:end]
        contents = self._contents(occupant.tokens_L, start, end)
        for group in self._groups:
            group.publish(slot, start, names, contents)
        self._published_S[slot] = end

    def _contents(self, tokens_L: Int32Array, start: int, end: int) -> list[bytes]:
        """The tokens of blocks `start` to `end` as bytes, each empty where nobody compares them."""
        if not self._verify_tokens:
            return [b""] * (end - start)
        return [packed_tokens(tokens_L[i * self.block_size : (i + 1) * self.block_size]) for i in range(start, end)]

    def _verify(self, tokens_L: Int32Array, names: Sequence[bytes], num: int) -> None:
        """Compare the tokens of a hit of `num` blocks, where tokens are kept."""
        contents = self._contents(tokens_L, 0, num)
        for group in self._groups:
            visible = slice(group.first_visible(num * self.block_size), num)
            for name, tokens in zip(names[visible], contents[visible], strict=True):
                group.cache.verify(name, tokens)

    def _give_back(self, group: GroupBlocks, blocks: list[int], fence: int) -> None:
        if blocks:
            group.pool.defer(blocks)
            self._deferred.add(_Release(group, blocks), fence)

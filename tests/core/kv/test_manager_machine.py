"""The whole KV manager under random use, against a device that knows what each place of memory was written for.

Up to three steps are in flight, and a step touches memory only when it is settled: whatever went back to a
pool too early is overwritten by then, or poisoned, and somebody reads it. Requests share prefixes, have two
keys, grow by chunks, single tokens and drafts, and are given up at any moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from isoinfer.kv.group_blocks import KVGroup
from isoinfer.kv.manager import KVManager
from isoinfer.kv.prefix_hash import HashChain
from isoinfer.kv.prefix_hit import PrefixHit

SLOTS, DEPTH, NUM_DRAFTS, NUM_BLOCKS = 4, 3, 3, 7
BLOCK_SIZES = (1, 4, 16, 128)
WINDOWS = ((None,), (None, 1), (None, 3), (None, 20), (None, 5, 40), (9,), (None, 200))
STEP_BLOCKS = (0.4, 1.2, 3, 9)


@dataclass(eq=False)
class Request:
    """A request and how far it is. `in_flight`: tokens of steps that have not settled."""

    key: bytes
    tokens_L: Any
    history_L: Any
    num_known: int
    slot: int = -1
    confirmed: int = 0
    in_flight: int = 0

    @property
    def upper(self) -> int:
        return self.confirmed + self.in_flight


@dataclass(eq=False)
class Row:
    request: Request
    slot: int
    count: int
    tables: list[Any]


@dataclass(eq=False)
class Step:
    step_id: int
    rows: list[Row] = field(default_factory=list)


class ManagerMachine(RuleBasedStateMachine):
    """Arrivals, chunks, drafts, settling late, release at any moment, over several groups and tiny pools."""

    device_kind: SimpleNamespace

    @initialize(
        block_size=st.sampled_from(BLOCK_SIZES),
        windows=st.sampled_from(WINDOWS),
        sizes=st.lists(st.integers(4, 20), min_size=3, max_size=3),
        step_blocks=st.sampled_from(STEP_BLOCKS),
        prefix_caching=st.sampled_from([True, True, True, True, False]),
        num_rings=st.sampled_from([0, 0, 2]),
    )
    def start(
        self,
        block_size: int,
        windows: tuple[int | None, ...],
        sizes: list[int],
        step_blocks: float,
        prefix_caching: bool,
        num_rings: int,
    ) -> None:
        self.block_size = block_size
        self.max_len = NUM_BLOCKS * block_size + 3
        self.step_tokens = max(2, int(step_blocks * block_size))
        self.prefix_caching = prefix_caching
        self.groups = [
            KVGroup(name=f"window {window}", num_blocks=size, window=window)
            for window, size in zip(windows, sizes, strict=False)
        ]
        self.device = self.device_kind.Device(self.groups, block_size)
        self.kv = KVManager(
            self.groups,
            block_size=block_size,
            num_slots=SLOTS,
            max_tokens=self.max_len + DEPTH * (NUM_DRAFTS + 1),
            step_tokens=self.step_tokens,
            prefix_caching=prefix_caching,
            verify_tokens=True,
            num_rings=num_rings,
            on_discard=self.discard,
        )
        self.num_rings = num_rings
        self.discarded_rings: list[tuple[int, int]] = []
        rng = np.random.default_rng(block_size)
        self.families = rng.integers(0, 2**17, (2, self.max_len)).astype(np.int32)
        self.meaning: dict[bytes, Any] = {}
        self.free_slots = list(range(SLOTS))
        self.waiting: list[tuple[Request, PrefixHit]] = []
        self.running: list[Request] = []
        self.steps: list[Step] = []
        self.step_id = self.settled_id = -1

    def discard(self, group: int, blocks: list[int]) -> None:
        if group < len(self.groups):
            self.device.discard(group, blocks)
        else:
            self.discarded_rings += [(group - len(self.groups), slot) for slot in blocks]

    # arrivals

    @rule(
        key=st.sampled_from([b"", b"", b"salt"]),
        family=st.integers(0, 1),
        shared_blocks=st.integers(1, NUM_BLOCKS),
        blocks=st.integers(0, NUM_BLOCKS - 1),
        more=st.integers(1, 3),
    )
    def arrive(self, key: bytes, family: int, shared_blocks: int, blocks: int, more: int) -> None:
        tokens_L = self.families[family].copy()
        tokens_L[shared_blocks * self.block_size :] += more
        history_L = self.device_kind.histories(key, tokens_L.tolist())
        for place, name in enumerate(self.names(tokens_L, key)):
            self.meaning[name] = history_L[place * self.block_size : (place + 1) * self.block_size]
        self.look_up(Request(key, tokens_L, history_L, blocks * self.block_size + more))

    def names(self, tokens_L: Any, key: bytes) -> list[bytes]:
        return list(HashChain(block_size=self.block_size, key=key).walk(tokens_L, self.max_len // self.block_size))

    def look_up(self, request: Request) -> None:
        known_L = request.tokens_L[: request.num_known]
        hit = self.kv.lookup(known_L, request.key)
        assert hit.num_tokens == self.longest(request)
        assert self.kv.lookup(known_L, request.key, earlier=hit) == hit
        self.waiting.append((request, hit))

    def longest(self, request: Request) -> int:
        """The longest cached prefix by its definition, from names computed here."""
        if not self.prefix_caching:
            return 0
        names = self.names(request.tokens_L, request.key)
        for num in range((request.num_known - 1) // self.block_size, 0, -1):
            if all(
                set(names[self.first(group, num * self.block_size) : num]) <= set(blocks.cache.published().values())
                for group, blocks in zip(self.groups, self.kv._groups, strict=True)
            ):
                return num * self.block_size
        return 0

    def first(self, group: KVGroup, position: int) -> int:
        return 0 if group.window is None else max(0, position - group.window + 1) // self.block_size

    @precondition(lambda self: self.waiting and self.free_slots)
    @rule(
        which=st.integers(0, 9), bypass=st.sampled_from([False, False, False, True]), blocks=st.integers(0, NUM_BLOCKS)
    )
    def admit(self, which: int, bypass: bool, blocks: int) -> None:
        request, hit = self.waiting.pop(which % len(self.waiting))
        slot = request.slot = self.free_slots.pop()
        slot_R, upper_R = np.array([slot]), np.array([blocks * self.block_size])
        had_room = self.kv.has_room(slot_R, upper_R, 0, None if bypass else hit)
        cached = self.kv.admit(slot, request.tokens_L, request.key, None if bypass else hit)
        assert cached % self.block_size == 0
        assert cached <= (0 if bypass else min(hit.num_tokens, request.num_known - 1))
        assert self.kv.has_room(slot_R, upper_R, 0) is had_room
        request.confirmed = cached
        self.running.append(request)
        tables = self.tables(request)
        for group, memory, table_B in zip(self.groups, self.device.memory, tables, strict=True):
            position_L = np.arange(self.first(group, cached) * self.block_size, cached)
            seen_L = memory[table_B[position_L // self.block_size], position_L % self.block_size]
            assert (seen_L == request.history_L[position_L]).all(), "a hit has the KV of other tokens"

    # steps

    @precondition(lambda self: self.running)
    @rule(rounds=st.integers(1, 10), depth=st.integers(1, DEPTH), rng=st.randoms(use_true_random=False))
    def run(self, rounds: int, depth: int, rng: Random) -> None:
        """Some rounds with up to `depth` steps in flight."""
        for _ in range(rounds):
            idle = not self.submit(rng) and not any(step.rows for step in self.steps)
            while len(self.steps) >= depth:
                self.settle_oldest(rng)
            self.everything_agrees()
            if idle and self.running:  # they lack blocks, or wanted nothing
                self.give_up(self.running[-1], again=True)

    @precondition(lambda self: self.steps)
    @rule(rng=st.randoms(use_true_random=False))
    def settle(self, rng: Random) -> None:
        self.settle_oldest(rng)

    def submit(self, rng: Random) -> int:
        """Plan a step. Returns how many rows it has."""
        self.step_id += 1
        step, budget = Step(self.step_id), self.step_tokens
        for request in rng.sample(self.running, len(self.running)):
            count = min(budget, self.next_count(request, rng))
            if count and self.extend(request, count):
                step.rows.append(Row(request, request.slot, count, self.tables(request)))
                request.in_flight += count
                budget -= count
        self.steps.append(step)
        return len(step.rows)

    def next_count(self, request: Request, rng: Random) -> int:
        """A chunk of known tokens; the last known one and drafts, if all others are in flight."""
        known = request.num_known - request.upper
        if known > 1:
            return rng.choice([known - 1, known - 1, known // 2, 0])
        room = self.max_len - request.num_known - request.in_flight
        return rng.randint(0, 1 + min(NUM_DRAFTS, room - 1)) if room > 0 else 0

    def extend(self, request: Request, count: int) -> bool:
        slots_R, upper_R = np.array([request.slot]), np.array([request.upper + count], dtype=np.int32)
        (missing,) = self.kv.missing(slots_R, upper_R).tolist()
        each, rest = divmod(missing, len(self.groups))
        assert rest == 0
        free = [self.kv.num_free(group) for group in range(len(self.groups))]
        extended = self.kv.extend(request.slot, request.upper + count)
        assert extended is (each <= min(free))
        if not extended:
            assert free == [self.kv.num_free(group) for group in range(len(self.groups))]
        assert self.kv.missing(slots_R, upper_R).tolist() == [0 if extended else missing]
        return extended

    def settle_oldest(self, rng: Random) -> None:
        early = rng.choice([True, False])
        step = self.steps.pop(0)
        rows = [row for row in step.rows if row.request in self.running]
        for row in step.rows:
            if row in rows:
                self.compute(row, rng)
            else:  # a zombie: what it computes is of no use, and nobody may see it
                self.device.write(
                    row.tables, row.request.confirmed, np.full(row.count, self.device_kind.GARBAGE, dtype=np.int64)
                )
        if early:
            self.settled(step.step_id)
        if rows:
            slots_R = np.array([row.slot for row in rows], dtype=np.int32)
            confirmed_R = np.array([row.request.confirmed for row in rows], dtype=np.int32)
            self.kv.settle(slots_R, confirmed_R, self.step_id)
            for row in rows:
                self.assert_only_what_can_be_seen_is_held(row.request)
        for request in [row.request for row in rows if row.request.num_known >= self.max_len]:
            self.give_up(request, again=False)
        if not early:
            self.settled(step.step_id)

    def settled(self, step_id: int) -> None:
        self.kv.settled(step_id)
        self.settled_id = step_id
        self.take_back_slots()

    def take_back_slots(self) -> None:
        """A slot with rings is free when all its rings were discarded, each once."""
        slots = sorted({slot for _, slot in self.discarded_rings})
        assert sorted(self.discarded_rings) == [(ring, slot) for ring in range(self.num_rings) for slot in slots]
        assert not set(slots) & set(self.free_slots)
        self.free_slots += slots
        self.discarded_rings.clear()

    def compute(self, row: Row, rng: Random) -> None:
        """Write the KV of the row's tokens, drafts that are rejected too, and read as its queries do."""
        request = row.request
        start, known = request.confirmed, request.num_known - request.confirmed
        right = rng.randint(min(row.count, known), row.count)
        values_L = np.full(row.count, self.device_kind.GARBAGE, dtype=np.int64)
        values_L[:right] = request.history_L[start : start + right]
        self.device.write(row.tables, start, values_L)
        for position in (start, start + right - 1):
            self.device.read(row.tables, position, request.history_L)
        request.confirmed += right
        request.in_flight -= row.count
        request.num_known = max(request.num_known, request.confirmed + 1)

    def assert_only_what_can_be_seen_is_held(self, request: Request) -> None:
        for group, table_B in zip(self.groups, self.tables(request), strict=True):
            held = np.flatnonzero(table_B).tolist()
            assert held[:1] in ([], [self.first(group, request.confirmed)]), (
                "blocks that the window has passed are held"
            )

    def tables(self, request: Request) -> list[Any]:
        return [self.kv.tables(group, np.array([request.slot]))[0] for group in range(len(self.groups))]

    # the end of a request

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 3 * SLOTS), again=st.booleans())
    def abort(self, which: int, again: bool) -> None:
        """Aborted, failed or preempted: its steps may be in flight. Mostly, nothing happens."""
        if which < len(self.running):
            self.give_up(self.running[which], again)

    def give_up(self, request: Request, again: bool) -> None:
        self.running.remove(request)
        slot, request.slot = request.slot, -1
        self.kv.release(slot, self.step_id if request.in_flight else self.settled_id)
        if self.num_rings:
            self.take_back_slots()
        else:
            self.free_slots.append(slot)  # tables are copied into plans: a slot without rings is free at once
        with pytest.raises(AssertionError, match="released twice"):
            self.kv.release(slot, self.step_id)
        if again:
            self.look_up(Request(request.key, request.tokens_L, request.history_L, request.num_known))

    @invariant()
    def everything_agrees(self) -> None:
        self.kv.check()
        for index, (group, blocks) in enumerate(zip(self.groups, self.kv._groups, strict=True)):
            owned = len({int(b) for request in self.running for b in self.tables(request)[index] if b})
            free, pending = self.kv.num_free(index), self.kv.num_pending(index)
            assert free + pending + owned == group.num_blocks - 1
            for block, name in blocks.cache.published().items():
                content_L = self.device.memory[index][block]
                assert (content_L == self.meaning[name]).all(), "a block does not hold what its name says"

    def teardown(self) -> None:
        if not hasattr(self, "kv"):
            return
        for request in self.running:
            self.kv.release(request.slot, self.step_id)
            if not self.num_rings:
                self.free_slots.append(request.slot)
        self.running = []
        self.settled(self.step_id)
        assert sorted(self.free_slots) == list(range(SLOTS))
        self.kv.check()
        for index, group in enumerate(self.groups):
            assert self.kv.num_free(index) == group.num_blocks - 1, "something is left when idle"
            assert self.kv.num_pending(index) == 0
        assert self.kv.usage == 0.0
        stats = self.kv.stats
        assert stats.hits <= stats.queries


@pytest.fixture
def machine(kv_device: SimpleNamespace) -> type[ManagerMachine]:
    ManagerMachine.device_kind = kv_device
    return ManagerMachine


def test_random_use(machine: type[ManagerMachine]) -> None:
    case = machine.TestCase("runTest")
    case.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
    case.runTest()


@pytest.mark.parametrize("seed", range(28))
def test_long_random_use(machine: type[ManagerMachine], seed: int) -> None:
    """Long lives, in which what is cached is found, evicted and found again."""
    rng = Random(seed)
    busy = machine()
    busy.start(
        block_size=BLOCK_SIZES[seed % 4],
        windows=WINDOWS[seed % 7],
        sizes=[rng.randint(9, 24) for _ in range(3)],
        step_blocks=rng.choice(STEP_BLOCKS),
        prefix_caching=True,
        num_rings=rng.choice([0, 1]),
    )
    for _ in range(40):
        busy.arrive(
            key=rng.choice([b"", b"", b"salt"]),
            family=rng.randint(0, 1),
            shared_blocks=rng.randint(1, NUM_BLOCKS),
            blocks=rng.randint(0, NUM_BLOCKS - 1),
            more=rng.randint(1, 3),
        )
        if busy.free_slots:
            busy.admit(which=rng.randint(0, 9), bypass=rng.random() < 0.1, blocks=rng.randint(0, NUM_BLOCKS))
        if busy.running:
            busy.run(rounds=rng.randint(1, 5), depth=rng.randint(1, DEPTH), rng=rng)
        if busy.running and rng.random() < 0.3:
            busy.abort(which=rng.randint(0, SLOTS), again=rng.random() < 0.5)
        busy.everything_agrees()
    busy.teardown()
    assert busy.kv.stats.hits

"""The whole KV manager under random use, against a device that knows what each place of memory was written for.

Up to three steps are in flight, and a step touches memory only when it is settled: whatever went back to a
pool too early is overwritten by then, or poisoned, and somebody reads it. Requests share prefixes, have two
keys, grow by chunks, single tokens and drafts, and are given up at any moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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

SLOTS, DEPTH, NUM_DRAFTS = 4, 3, 3
KEYS = (b"", b"salt")


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
        block_size=st.sampled_from([1, 4, 16, 128]),
        windows=st.sampled_from([(None,), (None, 1), (None, 3), (None, 20), (None, 5, 40), (9,), (None, 200)]),
        sizes=st.lists(st.integers(2, 14), min_size=3, max_size=3),
        step_blocks=st.sampled_from([0.3, 1, 2.5]),
        prefix_caching=st.sampled_from([True, True, True, False]),
        seed=st.integers(0, 2),
    )
    def start(
        self,
        block_size: int,
        windows: tuple[int | None, ...],
        sizes: list[int],
        step_blocks: float,
        prefix_caching: bool,
        seed: int,
    ) -> None:
        self.block_size = block_size
        self.max_len = 7 * block_size + 3
        self.step_tokens = max(1, int(step_blocks * block_size))
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
            on_discard=self.device.discard,
        )
        rng = np.random.default_rng(seed)
        self.families = rng.integers(0, 2**17, (2, self.max_len)).astype(np.int32)
        self.meaning: dict[bytes, Any] = {}
        self.free_slots = list(range(SLOTS))
        self.waiting: list[tuple[Request, PrefixHit]] = []
        self.running: list[Request] = []
        self.steps: list[Step] = []
        self.step_id = self.settled_id = -1

    # arrivals

    @rule(
        key=st.sampled_from(KEYS),
        family=st.integers(0, 1),
        shared=st.floats(0, 1),
        prompt=st.floats(0, 1),
        tail=st.integers(0, 2),
    )
    def arrive(self, key: bytes, family: int, shared: float, prompt: float, tail: int) -> None:
        tokens_L = self.families[family].copy()
        start = int(shared * self.max_len)
        tokens_L[start:] = (tokens_L[start:] + tail) % 2**17
        num_known = 1 + int(prompt * (self.max_len - 2))
        history_L = self.device_kind.histories(key, tokens_L.tolist())
        request = Request(key, tokens_L, history_L, num_known)
        names = HashChain(block_size=self.block_size, key=key).walk(tokens_L, self.max_len // self.block_size)
        for place, name in enumerate(names):
            self.meaning[name] = history_L[place * self.block_size : (place + 1) * self.block_size]
        hit = self.kv.lookup(tokens_L[:num_known], key)
        assert hit.num_tokens == self.longest(request)
        assert self.kv.lookup(tokens_L[:num_known], key, earlier=hit) == hit
        self.waiting.append((request, hit))

    def longest(self, request: Request) -> int:
        """The longest cached prefix by its definition, from names computed here."""
        if not self.prefix_caching:
            return 0
        names = list(HashChain(block_size=self.block_size, key=request.key).walk(request.tokens_L, 7))
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
    @rule(which=st.integers(0, 9), bypass=st.sampled_from([False, False, False, True]), blocks=st.integers(0, 7))
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

    @precondition(lambda self: self.running and len(self.steps) < DEPTH)
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        self.step_id += 1
        step, budget = Step(self.step_id), self.step_tokens
        for request in data.draw(st.permutations(self.running)):
            count = min(budget, self.next_count(request, data))
            if count and self.extend(request, count):
                step.rows.append(Row(request, request.slot, count, self.tables(request)))
                request.in_flight += count
                budget -= count
        self.steps.append(step)

    def next_count(self, request: Request, data: st.DataObject) -> int:
        """A chunk of known tokens; of the last known one and drafts, if all others are in flight."""
        known = request.num_known - request.upper
        if known > 1:
            return data.draw(st.integers(0, known - 1))
        room = self.max_len - request.num_known - request.in_flight
        if room <= 0:
            return 0
        return data.draw(st.integers(0, 1 + min(NUM_DRAFTS, room - 1)))

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

    @precondition(lambda self: self.steps)
    @rule(data=st.data(), early=st.booleans(), truncate=st.booleans())
    def settle(self, data: st.DataObject, early: bool, truncate: bool) -> None:
        step = self.steps.pop(0)
        rows = [row for row in step.rows if row.request in self.running]
        for row in step.rows:
            if row in rows:
                self.compute(row, data)
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
        for row in rows if truncate else []:
            self.kv.truncate(row.slot, row.request.upper, self.step_id)
        if not early:
            self.settled(step.step_id)

    def settled(self, step_id: int) -> None:
        self.kv.settled(step_id)
        self.settled_id = step_id

    def compute(self, row: Row, data: st.DataObject) -> None:
        """Write the KV of the row's tokens, drafts that are rejected too, and read as its queries do."""
        request = row.request
        start, known = request.confirmed, request.num_known - request.confirmed
        right = row.count if row.count < known else known
        right += data.draw(st.integers(0, row.count - right)) if row.count > right else 0
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
    @rule(which=st.integers(0, 9), again=st.booleans())
    def give_up(self, which: int, again: bool) -> None:
        """Finished, aborted, failed or preempted: its steps may be in flight."""
        request = self.running.pop(which % len(self.running))
        slot, request.slot = request.slot, -1
        self.kv.release(slot, self.step_id if request.in_flight else self.settled_id)
        self.free_slots.append(slot)
        with pytest.raises(AssertionError, match="released twice"):
            self.kv.release(slot, self.step_id)
        if again:
            restarted = Request(request.key, request.tokens_L, request.history_L, request.num_known)
            hit = self.kv.lookup(request.tokens_L[: request.num_known], request.key)
            self.waiting.append((restarted, hit))

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
        self.running = []
        self.kv.settled(self.step_id)
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
    case.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
    case.runTest()

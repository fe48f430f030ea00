"""A manager that is easy to drive, and a device that holds in each place of each block the history whose KV it is."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from isoinfer.kv.group_blocks import KVGroup
from isoinfer.kv.manager import KVManager

POISON, GARBAGE = 0, -1
TOKENS_L = np.arange(100, 164, dtype=np.int32)
NOW = -1  # a fence that has settled


class DrivenManager(KVManager):
    """A manager with what tests do again and again."""

    def start(self, slot: int, num_tokens: int, tokens_L: Any = TOKENS_L, key: bytes = b"") -> int:
        """Admit with what is cached, and give blocks for `num_tokens`. Returns the tokens that were cached."""
        cached = self.admit(slot, tokens_L, key, self.lookup(tokens_L[:num_tokens], key))
        assert self.extend(slot, num_tokens)
        return cached

    def confirm(self, slot: int, confirmed: int, fence: int = NOW) -> None:
        self.settle(np.array([slot]), np.array([confirmed]), fence)

    def cache(self, num_tokens: int, tokens_L: Any = TOKENS_L, key: bytes = b"") -> None:
        """Leave `num_tokens` cached and nothing else."""
        self.start(3, num_tokens, tokens_L, key)
        self.confirm(3, num_tokens)
        self.release(3, NOW)

    def table(self, slot: int, group: int = 0) -> list[int]:
        table_B: list[int] = self.tables(group, np.array([slot]))[0].tolist()
        return table_B

    def found(self, num_tokens: int, tokens_L: Any = TOKENS_L, key: bytes = b"") -> int:
        return self.lookup(tokens_L[:num_tokens], key).num_tokens


class ManagerFactory:
    """Managers of blocks of 4 tokens and four slots. With `window`, there is a second group with that window."""

    tokens_L = TOKENS_L

    def __call__(
        self, num_blocks: int = 9, window: int | None = None, groups: Sequence[KVGroup] = (), **settings: Any
    ) -> DrivenManager:
        windows = [None] if window is None else [None, window]
        groups = groups or [
            KVGroup(name=f"window {w}" if w else "full", num_blocks=num_blocks, window=w) for w in windows
        ]
        return DrivenManager(
            groups, **{"block_size": 4, "num_slots": 4, "max_tokens": 64, "step_tokens": 8, **settings}
        )

    def without_blocks(self, **settings: Any) -> DrivenManager:
        """A manager whose groups all have rings."""
        return DrivenManager([], **{"block_size": 4, "num_slots": 4, "max_tokens": 64, "step_tokens": 8, **settings})


@pytest.fixture(scope="session")
def make_kv() -> ManagerFactory:
    return ManagerFactory()


def histories(key: bytes, tokens: Sequence[int]) -> npt.NDArray[np.int64]:
    """One number for each position: what its KV depends on, which is the key and all tokens up to there."""
    value, out = zlib.crc32(key), []
    for token in tokens:
        value = hash((value, token)) | 1
        out.append(value)
    return np.array(out, dtype=np.int64)


class Device:
    """Memory of every group. Give `discard` to the manager, so that what it gives up is poisoned."""

    def __init__(self, groups: Sequence[KVGroup], block_size: int) -> None:
        self.groups = tuple(groups)
        self.block_size = block_size
        self.memory = [np.full((group.num_blocks, block_size), POISON, dtype=np.int64) for group in groups]

    def discard(self, group: int, blocks: Sequence[int]) -> None:
        assert 0 not in blocks
        self.memory[group][list(blocks)] = POISON

    def write(self, tables: Sequence[Any], start: int, values: Any) -> None:
        """Write `values` from position `start` on, through one table a group."""
        position_L = np.arange(start, start + len(values))
        for memory, table_B in zip(self.memory, tables, strict=True):
            block_L = table_B[position_L // self.block_size]
            assert (block_L > 0).all(), "a position to write has no block"
            memory[block_L, position_L % self.block_size] = values

    def read(self, tables: Sequence[Any], position: int, history_L: Any) -> None:
        """Assert that a query at `position` sees its own history in every group."""
        for group, memory, table_B in zip(self.groups, self.memory, tables, strict=True):
            first = 0 if group.window is None else max(0, position - group.window + 1)
            position_L = np.arange(first, position + 1)
            block_L = table_B[position_L // self.block_size]
            assert (block_L > 0).all(), f"group {group.name}: a position in sight of {position} has no block"
            seen_L = memory[block_L, position_L % self.block_size]
            wrong = position_L[seen_L != history_L[position_L]]
            assert not wrong.size, f"group {group.name}: a query at {position} sees something else at {wrong}"


@pytest.fixture(scope="session")
def kv_device() -> SimpleNamespace:
    """`Device(groups, block_size)`, `histories(key, tokens)`, and what a zombie writes."""
    return SimpleNamespace(Device=Device, histories=histories, GARBAGE=GARBAGE)

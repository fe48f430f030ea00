"""A row-by-row driver of the simulated model: tables and lengths are the test's, so that it can get them wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from isoinfer.backends.descriptor import BackendConfig, DeviceInfo
from isoinfer.backends.interface import AttentionBatch, KVSpec, ModelSpec, RingBatch
from isoinfer.backends.sim.backend import SimBackend
from isoinfer.layers.batch import ForwardBatch, GroupInputs

VOCAB, BLOCK, MAX_POSITION = 97, 4, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """New tokens of one request. `start`: tokens before them. `tables`: its blocks, for each group, or its one ring."""

    tokens: tuple[int, ...]
    start: int
    tables: tuple[tuple[int, ...], ...]
    length: int | None = None  # what the device thinks
    positions: tuple[int, ...] | None = None
    slots: tuple[tuple[int, ...], ...] | None = None
    floor: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    def but(self, **changes: Any) -> Row:
        return replace(self, **changes)


def make_spec(*windows: int | tuple[int, int] | None) -> ModelSpec:
    """One group for each window; (window, ring) has rings."""
    groups = tuple(
        KVSpec(
            name=f"group{i}",
            layers=(i,),
            num_kv_heads=1,
            head_dim=8,
            dtype="float32",
            window=window[0] if isinstance(window, tuple) else window,
            ring=window[1] if isinstance(window, tuple) else None,
        )
        for i, window in enumerate(windows)
    )
    return ModelSpec(
        architecture="Sim",
        kv_specs=groups,
        flops_per_token=10**9,
        bytes_per_token=10**9,
        weight_bytes=10**9,
        num_layers=len(windows),
        vocab_size=VOCAB,
        hidden_size=8,
        max_position=MAX_POSITION,
    )


@dataclass(slots=True)
class Driver:
    """One model on one simulated device."""

    backend: SimBackend
    spec: ModelSpec
    num_blocks: int = 40
    kv: Any = field(init=False)
    forward: Any = field(init=False)
    stream: Any = field(init=False)

    def __post_init__(self) -> None:
        self.kv = self.backend.allocate_kv(self.spec.kv_specs, [self.num_blocks] * len(self.spec.kv_specs))
        self.forward = self.backend.bind_model(self.spec)
        self.stream = self.backend.stream()

    def batch(self, rows: Sequence[Row]) -> ForwardBatch:
        lengths = [row.end if row.length is None else row.length for row in rows]
        positions = [p for row in rows for p in (row.positions or range(row.start, row.end))]
        num_groups = len(self.spec.kv_specs)
        return ForwardBatch(
            token_ids_T=_ints([token for row in rows for token in row.tokens]),
            positions_T=_ints(positions),
            groups=tuple(self._inputs(rows, lengths, group) for group in range(num_groups)),
            num_tokens=len(positions),
        )

    def _inputs(self, rows: Sequence[Row], lengths: list[int], group: int) -> GroupInputs:
        if self.spec.kv_specs[group].ring is not None:
            return self._rings(rows, group)
        return self._blocks(rows, lengths, group)

    def _blocks(self, rows: Sequence[Row], lengths: list[int], group: int) -> GroupInputs:
        slots: list[int] = []
        for row in rows:
            table = row.tables[group]
            natural = (table[p // BLOCK] * BLOCK + p % BLOCK for p in range(row.start, row.end))
            slots += row.slots[group] if row.slots else natural
        width = max(len(row.tables[group]) for row in rows)
        tables = [[*row.tables[group], *[0] * (width - len(row.tables[group]))] for row in rows]
        attention = AttentionBatch(
            query_len_R=np.array([len(row.tokens) for row in rows], dtype=np.int32),
            kv_len_upper_R=np.array([max(row.end, n) for row, n in zip(rows, lengths, strict=True)], dtype=np.int32),
            kv_len_device_R=_ints(lengths),
            block_table_RB=_ints(tables),
            block_size=BLOCK,
            maybe_kv_len_host_R=np.array(lengths, dtype=np.int32),
        )
        return GroupInputs(slots_T=_ints(slots), plan=self.backend.plan_attention(attention, self.stream))

    def _rings(self, rows: Sequence[Row], group: int) -> GroupInputs:
        """The last tokens of a row, as many as a ring holds, are kept; all others go to the scratch ring."""
        size, scratch = self.spec.kv_specs[group].ring, self.num_blocks - 1
        kept = [position >= row.end - size for row in rows for position in range(row.start, row.end)]
        rings = [row.tables[group][0] for row in rows for _ in row.tokens]
        plan = RingBatch(
            query_len_R=np.array([len(row.tokens) for row in rows], dtype=np.int32),
            kv_len_R=_ints([row.end for row in rows]),
            ring_R=_ints([row.tables[group][0] for row in rows]),
            floor_R=_ints([row.floor for row in rows]),
            positions_T=_ints([position for row in rows for position in range(row.start, row.end)]),
            ring_T=_ints([ring if keep else scratch for ring, keep in zip(rings, kept, strict=True)]),
        )
        return GroupInputs(slots_T=_ints([0] * len(rings)), plan=plan)

    def launch(self, *rows: Row, event: Any = None) -> list[torch.Tensor]:
        """Enqueue one step; the list holds its hidden rows once it has run."""
        batch, out = self.batch(rows), []
        self.stream.launch(lambda: out.append(self.forward.hidden(batch, self.kv)))
        if event is not None:
            event.record(self.stream)
        return out

    def hidden(self, *rows: Row) -> torch.Tensor:
        """Run one step at once."""
        event = self.backend.event()
        out = self.launch(*rows, event=event)
        event.synchronize()
        return out[0]

    def answers(self, *rows: Row) -> list[int]:
        """The hash of each row's last token."""
        hidden_T1, ends = self.hidden(*rows), np.cumsum([len(row.tokens) for row in rows]) - 1
        return hidden_T1[torch.from_numpy(ends), 0].tolist()


def _ints(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture(scope="session")
def make_backend() -> Callable[..., SimBackend]:
    """A backend by device id and options."""

    def make(device: str = "0", **options: Any) -> SimBackend:
        texts = {"block_size": str(BLOCK)} | {name: str(value) for name, value in options.items()}
        info = DeviceInfo(id=device, description="simulated", score=-1)
        return SimBackend(info, BackendConfig(options=texts))

    return make


@pytest.fixture(scope="session")
def make_driver(make_backend: Callable[..., SimBackend]) -> Callable[..., Driver]:
    """A driver of a model with one group for each window."""

    def make(*windows: int | None, device: str = "0", **options: Any) -> Driver:
        return Driver(make_backend(device, **options), make_spec(*(windows or (None,))))

    return make


@pytest.fixture(scope="session")
def row() -> type[Row]:
    return Row
